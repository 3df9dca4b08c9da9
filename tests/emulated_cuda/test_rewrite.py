"""CUDA C++ becomes C++ by its text: what is replaced, what is kept, what is refused."""

from pathlib import Path

import pytest

from tests.emulated_cuda.rewrite import rewrite, rewrite_tree

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = "::emulated::launch({%s}, [&](auto&... all) { %s(all...); }%s)"


def launch(config, kernel, *arguments):
    return LAUNCH % (config, kernel, "".join(f", {one}" for one in arguments))


@pytest.mark.parametrize(
    ("cuda", "host"),
    [
        ("add<<<1, 32>>>(a, b);", launch("1, 32", "add", "a", "b") + ";"),
        ("add<<<1, 32>>>();", launch("1, 32", "add") + ";"),
        ("add<A<T>, 8> <<<n, 32, 0, s>>> (a);", launch("n, 32, 0, s", "add<A<T>, 8>", "a") + ";"),
        ("mmoe::add<<<n >> 2, 32>>>(a);", launch("n >> 2, 32", "mmoe::add", "a") + ";"),
        ("if (n < 3) add<<<f(n, 2), 32>>>(a);", f"if (n < 3) {launch('f(n, 2), 32', 'add', 'a')};"),
        ("add<<<1, 32>>>(f(a, g(b)), c[1]);", launch("1, 32", "add", "f(a, g(b))", "c[1]") + ";"),
        ('add<<<1, 32>>>("a  b)", c);', launch("1, 32", "add", '"a  b)"', "c") + ";"),
        ("a<<<1, 2>>>(x); b<<<3, 4>>>();", f"{launch('1, 2', 'a', 'x')}; {launch('3, 4', 'b')};"),
    ],
)
def test_a_launch_becomes_a_call(cuda, host):
    assert rewrite(cuda) == host


def test_a_launch_over_lines_keeps_their_number():
    text = "first;\nadd<T>\n    <<<grid(a,\n        b), 32>>>(\n    x,  // the rows\n    y);\nlast;"

    lines = rewrite(text).split("\n")

    assert lines[:2] == ["first;", launch("grid(a, b), 32", "add<T>", "x", "y")]
    assert (lines[-1], len(lines)) == ("last;", text.count("\n") + 1)


SHARED = "::emulated::shared_variable<%s>(EMULATED_HERE);"
ALL = "unsigned char* const all = ::emulated::dynamic_shared();"
KERNELS = "STABLE_TORCH_LIBRARY_IMPL(%s, m) {"
CALL = "torch_call_dispatcher(%s, stack)"


@pytest.mark.parametrize(
    ("cuda", "host"),
    [
        ("__shared__ float a[4][kWarp + 1];", f"auto& a = {SHARED % 'float[4][kWarp + 1]'}"),
        ("__shared__ int n;", f"auto& n = {SHARED % 'int'}"),
        ("__shared__ __align__(16) Pack<T, 4> a[2];", f"auto& a = {SHARED % 'Pack<T, 4>[2]'}"),
        ("extern __shared__ __align__(16) unsigned char all[];", ALL),
        ("extern __shared__ unsigned char all[];", ALL),
        ("STD_CUDA_KERNEL_LAUNCH_CHECK();", ""),
        ("STD_CUDA_CHECK(cudaGetDevice(&d));", "::emulated::check(cudaGetDevice(&d));"),
        ("torch::stable::new_empty(x, {3});", "::emulated::new_empty(x, {3});"),
        ("x.is_cuda() && y->is_cuda()", "::emulated::is_cuda(x) && ::emulated::is_cuda(y)"),
        ("x.get_device_index()", "::emulated::device_index(x)"),
        (KERNELS % "mmoe, CUDA", KERNELS % "mmoe_emulated, CPU"),
        ("torch::stable::accelerator::DeviceGuard guard_;", "::emulated::DeviceGuard guard_;"),
        (CALL % "name, overload", CALL % "::emulated::operator_name(name, overload), overload"),
    ],
)
def test_shared_memory_and_names_of_the_runtime(cuda, host):
    assert rewrite(cuda) == host


@pytest.mark.parametrize(
    "text",
    [
        "// add<<<1, 2>>>(a)\nint a;",
        "/* add<<<1, 2>>>(a)\n   __shared__ int a = 3; asm */\nint a;",
        "int a;  // asm, then /* __shared__\nint b;",
        "// one line \\\n   add<<<1, 2>>>\nint a;",
    ],
)
def test_comments_are_left_out_and_their_lines_stay(text):
    host = rewrite(text)

    assert "<<<" not in host
    assert host.count("\n") == text.count("\n")
    assert host.strip().split("\n")[0].strip() == "int a;"


@pytest.mark.parametrize(
    "text",
    [
        'const char* s = "add<<<1, 2>>>(a); // no comment";',
        'fail("expected __shared__, got \\"asm\\"");',
        'const char c = \'"\'; const char* s = "<<<";',
        "const int n = 1'000'000;",
        'm.impl("x.is_cuda()", f);',
    ],
)
def test_strings_and_characters_are_kept(text):
    assert rewrite(text) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("__shared__ int n = 3;", "without a value"),
        ("__shared__ float a[4], b[4];", "without a value"),
        ("__shared__ float a, b;", "without a value"),
        ("__shared__ float a[4]; __shared__ float b[4];", "a line for each"),
        ("extern __shared__ float all[];", "unsigned char name"),
        ("cudaLaunchCooperativeKernel(f, 1, 2, a);", "kernels are launched as name<<<"),
        ("cudaLaunchKernelEx(&config, f, a);", "kernels are launched as name<<<"),
        ("namespace cg = cooperative_groups;", "kernels are launched as name<<<"),
        ('asm volatile("bar.sync 0;");', r"instructions stand in ptx\.cuh alone"),
        ("#if __CUDA_ARCH__ >= 900", "of no one architecture"),
        ("__constant__ float table[4];", "not emulated"),
        ("#define RUN(f) f<<<1, 2>>>(a)", "a launch in a macro"),
        ("#define RUN(f) \\\n  f<<<1, 2>>>(a)", "a launch in a macro"),
        ("add<<<1, 2>>>;", "a launch is written"),
        ("add<<<1, 2(a);", "a launch is written"),
        ("<<<1, 2>>>(a);", "a launch is written"),
        ("tensors[i].is_cuda()", "ask a tensor by its name"),
        ("f(x).get_device_index()", "ask a tensor by its name"),
        ("STABLE_TORCH_LIBRARY_IMPL(other, CUDA, m) {", "expected STABLE_TORCH_LIBRARY_IMPL"),
        ('R"(<<<)"', "raw strings"),
    ],
)
def test_what_would_be_compiled_into_something_else_is_refused(text, why):
    with pytest.raises(ValueError, match=rf"^kernel\.cu:3: .* cannot be emulated: .*{why}"):
        rewrite(f"// one\nint two;\n{text}\n", "kernel.cu")


def test_every_source_is_understood(tmp_path):
    written = rewrite_tree(ROOT / "csrc", tmp_path)

    assert len(written) == len(list((ROOT / "csrc/cuda").rglob("*.cu")))
    for file in tmp_path.rglob("*.[chu]*"):
        own = ROOT / "csrc" / file.relative_to(tmp_path)
        own = own.with_suffix(".cu") if own.suffix == ".cpp" else own
        assert file.read_text().count("\n") == own.read_text().count("\n")


def test_a_source_is_written_when_it_changes_alone(tmp_path):
    source, target = tmp_path / "csrc", tmp_path / "build"
    source.mkdir()
    (source / "a.cu").write_text("int a;")
    (source / "ptx.cuh").write_text('asm("");')

    assert rewrite_tree(source, target) == [target / "a.cpp"]
    before = (target / "a.cpp").stat().st_mtime_ns
    rewrite_tree(source, target)
    assert (target / "a.cpp").stat().st_mtime_ns == before
    (source / "a.cu").write_text("int b;")
    rewrite_tree(source, target)
    assert (target / "a.cpp").read_text() == "int b;"
    assert not (target / "ptx.cuh").exists()
