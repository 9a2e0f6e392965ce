// Norms over numpy arrays.
#include "bind.hpp"
#include "kernels.hpp"

namespace octavo {

namespace {

NewMatrix rms_norm(Matrix x, Vector weight, float eps, Pool& pool) {
    const std::size_t rows = x.shape(0), width = x.shape(1);
    require(weight.shape(0) == width, "weight has " + std::to_string(weight.shape(0)) +
                                          " values for rows of " + std::to_string(width));
    NewMatrix out = new_matrix(rows, width);
    nb::gil_scoped_release released;
    pool.run(rows, [&](std::size_t r) {
        kernels().rms_norm(x.data() + r * width, weight.data(), out.data() + r * width, width, eps);
    });
    return out;
}

}  // namespace

void bind_norm(nb::module_& module) {
    module.def("rms_norm", &rms_norm, nb::arg("x").noconvert(), nb::arg("weight").noconvert(),
               nb::arg("eps"), nb::arg("pool"),
               "RMS norm of each row of x (rows, width), times weight (width,): float32, a new array. "
               "Raises ValueError where the widths differ.");
}

}  // namespace octavo
