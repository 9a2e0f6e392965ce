// The extension module octavo.ops._native: kernels over numpy arrays.
//
// Owns: the module, the pool of threads, and what the build was made with.
// Does not know: models, batches. Each bind_*.cpp adds the functions of its area.
#include "bind.hpp"

#include <string>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "kernels.hpp"

namespace octavo {

namespace {

const char* compiler() {
#if defined(__clang__)
    return "clang " __clang_version__;
#elif defined(__GNUC__)
    return "gcc " __VERSION__;
#else
    return "unknown";
#endif
}

nb::dict build_info() {
    nb::dict info;
    info["compiler"] = compiler();
    std::size_t count = 0;
    const char* const* names = available_isas(&count);
    info["isas"] = std::vector<std::string>(names, names + count);
    info["isa"] = kernels().isa;
    return info;
}

}  // namespace

}  // namespace octavo

NB_MODULE(_native, module) {
    using namespace octavo;
    module.doc() = "Octavo's compiled kernels. octavo.ops.native says whether they are there.";
    module.def("build_info", &build_info,
               "The compiler, the instruction sets that can run here (best first), and the one in use.");
    nb::class_<Pool>(module, "Pool", "Threads that share the pieces of a kernel.")
        .def(nb::init<int>(), nb::arg("threads"))
        .def_prop_ro("threads", &Pool::threads);
    bind_codes(module);
    bind_ceiling(module);
    bind_norm(module);
    bind_linear(module);
    bind_sample(module);
    bind_attention(module);
    bind_experts(module);
    bind_program(module);
}
