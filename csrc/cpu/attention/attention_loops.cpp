// The loops of target_attention for this processor.

#include "attention.h"

#define MMOE_KERNELS "attention/attention_kernels.h"
#include "../each_isa.h"

namespace mmoe::attention {

template <typename T>
Loops<T> best_loops() {
  return MMOE_BEST(loops<T>)();
}

template Loops<float> best_loops();
template Loops<double> best_loops();
template Loops<bf16> best_loops();

}  // namespace mmoe::attention
