// The extension module octavo.ops._native: kernels over numpy arrays, and what they were built with.
//
// Owns: the Python names, the checks of shapes and types.
// Does not know: models, batches, threads.

#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

namespace nb = nanobind;

namespace {

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using RowsOut = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

// One row. Sums in eight fixed lanes, so that the order of additions depends on the width alone.
void rms_norm_row(const float* x, const float* weight, float* out, std::size_t width, float eps) {
    float lanes[8] = {};
    std::size_t i = 0;
    for (; i + 8 <= width; i += 8)
        for (std::size_t lane = 0; lane < 8; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
    for (; i < width; ++i) lanes[i % 8] += x[i] * x[i];
    float sum = 0.0f;
    for (float lane : lanes) sum += lane;
    const float factor = 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
    for (i = 0; i < width; ++i) out[i] = x[i] * factor * weight[i];
}

RowsOut rms_norm(Rows x, Vector weight, float eps) {
    const std::size_t rows = x.shape(0), width = x.shape(1);
    if (weight.shape(0) != width)
        throw std::invalid_argument("weight has " + std::to_string(weight.shape(0)) +
                                    " values for rows of " + std::to_string(width));
    float* out = new float[rows * width];
    nb::capsule owner(out, [](void* p) noexcept { delete[] static_cast<float*>(p); });
    {
        nb::gil_scoped_release released;
        for (std::size_t r = 0; r < rows; ++r)
            rms_norm_row(x.data() + r * width, weight.data(), out + r * width, width, eps);
    }
    return RowsOut(out, {rows, width}, owner);
}

const char* compiler() {
#if defined(__clang__)
    return "clang " __clang_version__;
#elif defined(__GNUC__)
    return "gcc " __VERSION__;
#elif defined(_MSC_VER)
    return "msvc";
#else
    return "unknown";
#endif
}

// The widest instruction set that the processor at hand has, of those that kernels are written for.
std::string processor_isa() {
#if (defined(__x86_64__) || defined(_M_X64)) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return __builtin_cpu_supports("avx512vnni") ? "avx512_vnni" : "avx512";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "avx2";
#endif
    return "generic";
}

nb::dict build_info() {
    nb::dict info;
    info["compiler"] = compiler();
    info["processor_isa"] = processor_isa();
    return info;
}

}  // namespace

NB_MODULE(_native, module) {
    module.doc() = "Octavo's compiled kernels. octavo.ops.native says whether they are there.";
    module.def("rms_norm", &rms_norm, nb::arg("x").noconvert(),
               nb::arg("weight").noconvert(), nb::arg("eps"),
               "RMS norm of each row of x (rows, width), times weight (width,): float32, a new array. "
               "Raises ValueError where the widths differ.");
    module.def("build_info", &build_info,
               "The compiler that built the module, and the processor's instruction set.");
}
