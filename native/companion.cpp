// vkprefill._companion: a Vulkan device opened with features (context.h), as a manager for kp; timestamps between
// dispatches (timestamps.h), and dispatches that share pipelines (pipeline.h).
//
// kp 0.9 opens the device without a single feature and cannot be given one that is open: its constructor for that
// leaves the list of queues empty and then reads past its end. So the companion opens the device, lays a kp::Manager
// out in memory (kp.h) and fills it in; from there kp's own code works with it as with one that it made.
//
// Who owns what: Context owns instance and device. Each pointer to the device that kp hands to its tensors, sequences
// and algorithms keeps the Context, so they may be dropped in any order, also after the manager. The manager gives back
// what was made through it, as kp's does, and neither device nor instance.
#include <cstring>
#include <new>

#include <dlfcn.h>

#include <pybind11/stl.h>

#include "context.h"
#include "kp.h"
#include "pipeline.h"
#include "timestamps.h"

namespace py = pybind11;
using namespace companion;

namespace {

constexpr const char* MANAGER_DESTRUCTOR = "_ZN2kp7ManagerD1Ev";
constexpr const char* TENSOR_BUFFER_INFO = "_ZN2kp6Tensor29constructDescriptorBufferInfoEv";
// More than a kp::Manager has in any build: with its debug layers there are members behind ours, where zeros mean that
// there is no callback.
constexpr size_t MANAGER_BYTES = 64 << 10;

using Destructor = void (*)(kp::Manager*);

std::shared_ptr<kp::Manager> make_manager(const ContextPointer& context, Destructor destroy) {
    void* memory = ::operator new(MANAGER_BYTES);
    std::memset(memory, 0, MANAGER_BYTES);
    std::shared_ptr<kp::Manager> manager(new (memory) kp::Manager(), [destroy](kp::Manager* pointer) {
        destroy(pointer);
        ::operator delete(pointer);
    });
    manager->instance = shared_handle(context->physical.instance, context);
    manager->physical_device = shared_handle(context->physical.handle, context);
    manager->queue_families = {context->physical.family};
    manager->queues = {shared_handle(context->queue, context)};
    manager->free_instance = false;
    manager->free_device = false;
    manager->manage_resources = true;
    manager->device = shared_handle(context->device, context);
    return manager;
}

// A function of kp's, from the library that is loaded already.
template <typename Function>
Function exported(const std::string& kp_library, const char* symbol) {
    void* library = dlopen(kp_library.c_str(), RTLD_NOW | RTLD_NOLOAD);
    void* found = library ? dlsym(library, symbol) : nullptr;
    if (!found) {
        throw py::import_error("vkprefill._companion: " + kp_library + " does not export " + symbol);
    }
    return reinterpret_cast<Function>(found);
}

py::dict about(const Physical& physical) {
    py::dict facts;
    facts["name"] = physical.properties.deviceName;
    facts["features"] = physical.features();
    facts["timestamps"] = physical.has_timestamps();
    facts["matrices"] = physical.matrices();
    return facts;
}

}  // namespace

PYBIND11_MODULE(_companion, module) {
    const auto kp_library = kp::import_checked("vkprefill._companion").attr("__file__").cast<std::string>();
    const auto destroy = exported<Destructor>(kp_library, MANAGER_DESTRUCTOR);
    const auto buffer_info = exported<BufferInfo>(kp_library, TENSOR_BUFFER_INFO);

    module.def(
        "describe", [](uint32_t index) { return about(Physical(index)); }, py::arg("index"),
        "What the device would be opened with; nothing stays open.");
    module.def("num_open", [] { return num_open; }, "Devices that are open.");
    py::class_<Context, ContextPointer>(module, "Context", "A device opened with all features that we use.")
        .def(py::init<uint32_t>(), py::arg("index"))
        .def("about", [](const Context& context) { return about(context.physical); })
        .def_property_readonly("tick_ns", [](const Context& c) { return c.physical.properties.limits.timestampPeriod; })
        .def_property_readonly("tick_bits", [](const Context& c) { return c.physical.timestamp_bits; })
        .def("manager", [destroy](const ContextPointer& context) { return make_manager(context, destroy); });
    py::class_<Timestamps, std::shared_ptr<Timestamps>>(module, "Timestamps", "Points in time on the device.")
        .def(py::init<ContextPointer, uint32_t>(), py::arg("context"), py::arg("count"))
        .def("read", &Timestamps::read, py::arg("count"), "The first marks, in ticks.");
    py::class_<Mark, kp::OpBase, std::shared_ptr<Mark>>(module, "Mark", "When all recorded before it has ended.")
        .def(py::init<std::shared_ptr<Timestamps>, uint32_t>(), py::arg("timestamps"), py::arg("index"));
    py::class_<Pipeline, std::shared_ptr<Pipeline>>(module, "Pipeline", "A shader with its constants.")
        .def(py::init([](const ContextPointer& context, uint32_t bindings, uint32_t push_bytes,
                         const std::string& spirv, const std::string& constants) {
                 auto device = shared_handle(context->device, context);
                 return std::make_shared<Pipeline>(std::move(device), bindings, push_bytes, spirv, constants);
             }),
             py::arg("context"), py::arg("bindings"), py::arg("push_bytes"), py::arg("spirv"), py::arg("constants"));
    py::class_<Binding, std::shared_ptr<Binding>>(module, "Binding", "A pipeline with its buffers.")
        .def(py::init([buffer_info](std::shared_ptr<Pipeline> pipeline,
                                    std::vector<std::shared_ptr<kp::Tensor>> tensors) {
                 return std::make_shared<Binding>(std::move(pipeline), std::move(tensors), buffer_info);
             }),
             py::arg("pipeline"), py::arg("tensors"));
    py::class_<Dispatch, kp::OpBase, std::shared_ptr<Dispatch>>(module, "Dispatch", "Runs a binding.")
        .def(py::init<std::shared_ptr<Binding>, const std::array<uint32_t, 3>&, std::string>(), py::arg("binding"),
             py::arg("grid"), py::arg("push"));
}
