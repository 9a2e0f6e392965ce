// Routed experts over numpy arrays.
#include "bind.hpp"

#include <optional>
#include <string_view>
#include <vector>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "experts.hpp"
#include "names.hpp"

namespace octavo {

namespace {

void add_codes(Stack& stack, const std::vector<const CodeMatrix*>& parts, std::optional<Vector> bias) {
    std::size_t outputs = 0;
    for (const CodeMatrix* part : parts) outputs += part->outputs();
    require(!bias || bias->shape(0) == outputs, "a bias must have " + text(outputs) + " values");
    stack.add(parts, bias ? bias->data() : nullptr);
}

void new_experts(Experts* at, std::size_t count, std::size_t top_k, bool normalize, float scale, bool shared,
                 std::string_view kind) {
    const NamedActivation named = activation_named(kind);
    new (at) Experts({count, top_k, normalize, scale, shared}, named.kind, named.gated);
}

NewMatrix experts(Matrix x, Matrix logits, const Experts& experts, Pool& pool) {
    const std::size_t rows = x.shape(0);
    require(logits.shape(0) == rows, text(logits.shape(0)) + " rows of scores for " + text(rows));
    experts.check(x.shape(1), logits.shape(1));
    NewMatrix out = new_matrix(rows, x.shape(1));
    nb::gil_scoped_release released;
    // Kept from call to call: it grows to the largest batch.
    static thread_local std::vector<float> scratch;
    const std::size_t needed = rows * experts.scratch_width();
    if (scratch.size() < needed) scratch.resize(needed);
    experts.run(x.data(), logits.data(), rows, out.data(), scratch.data(), pool);
    return out;
}

}  // namespace

void bind_experts(nb::module_& module) {
    nb::class_<Stack>(module, "Stack", "Packed matrices of either family, stacked along their outputs.")
        .def(nb::init<>())
        .def("floats", nb::overload_cast<const FloatWeight&>(&Stack::add), nb::arg("weight"),
             nb::keep_alive<1, 2>())
        .def("codes", &add_codes, nb::arg("parts"), nb::arg("bias").noconvert().none(), nb::keep_alive<1, 2>(),
             nb::keep_alive<1, 3>(), "`bias` (outputs,) or None. Raises ValueError where inputs differ.");
    nb::class_<Experts>(module, "Experts", "MLPs of which each row takes a few, as a router's scores have it.")
        .def("__init__", &new_experts, nb::arg("count"), nb::arg("top_k"), nb::arg("normalize"), nb::arg("scale"),
             nb::arg("shared"), nb::arg("kind"),
             "None yet. `kind` is an activation; with `shared` every row takes one more expert.")
        .def("add", &Experts::add, nb::arg("up"), nb::arg("down"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(),
             "The next one; the shared one is the last. Raises ValueError where shapes do not fit.")
        .def_prop_ro("scratch_width", &Experts::scratch_width);
    module.def("experts", &experts, nb::arg("x").noconvert(), nb::arg("logits").noconvert(), nb::arg("experts"),
               nb::arg("pool"),
               "The weighted sum of the outputs of each row's experts, in the order of their numbers: "
               "(rows, width) float32, new. A row's values depend on that row alone.");
}

}  // namespace octavo
