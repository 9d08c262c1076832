#include "abi/python_frames.h"

#include <dlfcn.h>

#include <set>
#include <utility>

#include "stats/lock.h"

namespace spillway {
namespace {

using Object = void;  // the interpreter's PyObject, PyFrameObject, PyCodeObject and PyThreadState

// docs.python.org/3/c-api: init, frame, code, object, unicode, exceptions. No header is needed to build, and
// any interpreter of these versions serves.
struct PythonApi {
  int (*Py_IsInitialized)() = nullptr;
  int (*Py_IsFinalizing)() = nullptr;  // _Py_IsFinalizing before 3.13
  Object* (*PyGILState_GetThisThreadState)() = nullptr;
  int (*PyGILState_Check)() = nullptr;
  int (*PyGILState_Ensure)() = nullptr;
  void (*PyGILState_Release)(int) = nullptr;
  Object* (*PyEval_GetFrame)() = nullptr;
  Object* (*PyFrame_GetBack)(Object*) = nullptr;
  Object* (*PyFrame_GetCode)(Object*) = nullptr;
  int (*PyFrame_GetLasti)(Object*) = nullptr;  // since 3.11
  int (*PyFrame_GetLineNumber)(Object*) = nullptr;
  int (*PyCode_Addr2Line)(Object*, int) = nullptr;
  Object* (*PyObject_GetAttrString)(Object*, const char*) = nullptr;
  const char* (*PyUnicode_AsUTF8)(Object*) = nullptr;
  void (*Py_IncRef)(Object*) = nullptr;
  void (*Py_DecRef)(Object*) = nullptr;
  void (*PyErr_Fetch)(Object**, Object**, Object**) = nullptr;
  void (*PyErr_Restore)(Object*, Object*, Object*) = nullptr;

  bool is_there = false;

  PythonApi() {
    bool all = true;
    const auto find = [&](auto& function, const char* name, const char* older = nullptr) {
      void* found = dlsym(RTLD_DEFAULT, name);
      if (found == nullptr && older != nullptr) found = dlsym(RTLD_DEFAULT, older);
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
      return found != nullptr;
    };
#define SPW_FIND(name) all = find(name, #name) && all
    SPW_FIND(Py_IsInitialized);
    SPW_FIND(PyGILState_GetThisThreadState);
    SPW_FIND(PyGILState_Check);
    SPW_FIND(PyGILState_Ensure);
    SPW_FIND(PyGILState_Release);
    SPW_FIND(PyEval_GetFrame);
    SPW_FIND(PyFrame_GetBack);
    SPW_FIND(PyFrame_GetCode);
    SPW_FIND(PyFrame_GetLineNumber);
    SPW_FIND(PyCode_Addr2Line);
    SPW_FIND(PyObject_GetAttrString);
    SPW_FIND(PyUnicode_AsUTF8);
    SPW_FIND(Py_IncRef);
    SPW_FIND(Py_DecRef);
    SPW_FIND(PyErr_Fetch);
    SPW_FIND(PyErr_Restore);
#undef SPW_FIND
    all = find(Py_IsFinalizing, "Py_IsFinalizing", "_Py_IsFinalizing") && all;
    (void)find(PyFrame_GetLasti, "PyFrame_GetLasti");
    is_there = all;
  }
};

const PythonApi& python() {
  static const PythonApi kApi;
  return kApi;
}

// Before 3.11 a frame's position is its line.
uint64_t position_of(const PythonApi& api, Object* frame) {
  return static_cast<uint64_t>(api.PyFrame_GetLasti != nullptr ? api.PyFrame_GetLasti(frame)
                                                               : api.PyFrame_GetLineNumber(frame));
}

std::string text_of(const PythonApi& api, Object* object, const char* attribute,
                    const char* older = nullptr) {
  Object* value = api.PyObject_GetAttrString(object, attribute);
  if (value == nullptr && older != nullptr) return text_of(api, object, older);
  const char* text = value == nullptr ? nullptr : api.PyUnicode_AsUTF8(value);
  std::string out = text == nullptr ? "?" : text;
  if (value != nullptr) api.Py_DecRef(value);
  return out;
}

}  // namespace

PythonLock::PythonLock() {
  const PythonApi& api = python();
  // A thread that Python does not know has no frames, and must not become known for this. At the
  // interpreter's end, who waits for its lock never returns.
  if (!api.is_there || api.Py_IsInitialized() == 0 || api.Py_IsFinalizing() != 0 ||
      api.PyGILState_GetThisThreadState() == nullptr) {
    return;
  }
  held_ = true;
  if (api.PyGILState_Check() != 0) return;
  state_ = api.PyGILState_Ensure();
  taken_ = true;
}

bool PythonLock::is_held() {
  const PythonApi& api = python();
  return api.is_there && api.Py_IsInitialized() != 0 && api.Py_IsFinalizing() == 0 &&
         api.PyGILState_GetThisThreadState() != nullptr && api.PyGILState_Check() != 0;
}

PythonLock::~PythonLock() {
  if (taken_) python().PyGILState_Release(state_);
}

int list_python_frames(PythonFrame* frames, int most) {
  const PythonApi& api = python();
  int count = 0;
  Object* frame = api.PyEval_GetFrame();  // borrowed, as those before it are not
  if (frame != nullptr) api.Py_IncRef(frame);
  while (frame != nullptr && count < most) {
    Object* code = api.PyFrame_GetCode(frame);
    frames[count++] = {reinterpret_cast<uintptr_t>(code), position_of(api, frame)};
    api.Py_DecRef(code);  // the frame has it as well
    Object* back = api.PyFrame_GetBack(frame);
    api.Py_DecRef(std::exchange(frame, back));
  }
  if (frame != nullptr) api.Py_DecRef(frame);
  return count;
}

void name_python_frames(const PythonFrame* frames, int count, std::vector<StackFrame>& out) {
  if (count == 0) return;
  const PythonApi& api = python();
  struct Kept {
    BlockingMutex mutex;
    std::set<uintptr_t> codes SPW_GUARDED_BY(mutex);
  };
  static Kept& kept = *new Kept;
  Object* error[3] = {};
  api.PyErr_Fetch(&error[0], &error[1], &error[2]);
  for (int i = 0; i < count; ++i) {
    auto* code = reinterpret_cast<Object*>(frames[i].code);
    {
      const Lock lock(kept.mutex);
      if (kept.codes.insert(frames[i].code).second) api.Py_IncRef(code);
    }
    const auto position = static_cast<int>(frames[i].position);
    const int line = api.PyFrame_GetLasti != nullptr ? api.PyCode_Addr2Line(code, position) : position;
    out.push_back({0, text_of(api, code, "co_qualname", "co_name"), text_of(api, code, "co_filename"),
                   static_cast<uint64_t>(line > 0 ? line : 0)});
  }
  api.PyErr_Restore(error[0], error[1], error[2]);
}

}  // namespace spillway
