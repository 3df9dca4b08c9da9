// Whether AddressSanitizer looks at this build, and what it is told by.

#pragma once

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define EMULATED_ASAN 1
#else
#define EMULATED_ASAN 0
#endif
