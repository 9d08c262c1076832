#include "bench/driver_probe/launch.h"

namespace spillway::probe {

Module::Module(const Session& session, const char* ptx) : session_(&session) {
  const Driver& driver = session.driver();
  if (driver.cuModuleLoadData == nullptr || driver.cuModuleGetFunction == nullptr ||
      driver.cuModuleUnload == nullptr) {
    throw Failure("this driver loads no modules");
  }
  session.check(driver.cuModuleLoadData(&module_, ptx), "cuModuleLoadData");
}

CUfunction Module::function(const char* name) const {
  CUfunction found = nullptr;
  session_->check(session_->driver().cuModuleGetFunction(&found, module_, name), "cuModuleGetFunction");
  return found;
}

void launch_with(const Session& session, CUfunction function, const Shape& shape, CUstream stream,
                 void** arguments) {
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config = {};
  config.gridDimX = shape.blocks;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = shape.threads;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = &attribute;
  config.numAttrs = shape.dependent ? 1 : 0;
  const auto start = session.entry<PFN_cuLaunchKernelEx_v11060>("cuLaunchKernelEx");
  session.check(start(&config, function, arguments, nullptr), "cuLaunchKernelEx");
}

Graph::Graph(const Session& session, CUstream stream, const std::function<void()>& enqueue)
    : session_(&session) {
  const Driver& driver = session.driver();
  const auto instantiate =
      session.entry<PFN_cuGraphInstantiateWithFlags_v11040>("cuGraphInstantiateWithFlags");
  if (driver.cuStreamBeginCapture == nullptr || driver.cuStreamEndCapture == nullptr ||
      driver.cuGraphDestroy == nullptr) {
    throw Failure("this driver captures no streams");
  }
  session.check(driver.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                "cuStreamBeginCapture");
  CUgraph captured = nullptr;
  try {
    enqueue();
  } catch (const Failure&) {
    driver.cuStreamEndCapture(stream, &captured);
    if (captured != nullptr) driver.cuGraphDestroy(captured);
    throw;
  }
  session.check(driver.cuStreamEndCapture(stream, &captured), "cuStreamEndCapture");
  const CUresult made = instantiate(&graph_, captured, 0);
  driver.cuGraphDestroy(captured);
  session.check(made, "cuGraphInstantiateWithFlags");
}

Graph::~Graph() {
  if (graph_ == nullptr) return;
  session_->entry<PFN_cuGraphExecDestroy_v10000>("cuGraphExecDestroy")(graph_);
}

void Graph::launch(CUstream stream) const {
  session_->check(session_->entry<PFN_cuGraphLaunch_v10000>("cuGraphLaunch")(graph_, stream),
                  "cuGraphLaunch");
}

}  // namespace spillway::probe
