#include "cli/doctor/grades.h"

#include <array>
#include <string_view>

namespace spillway {
namespace {

// Says what a no means. Checks that are not named here are facts: either answer is well.
struct Meaning {
  std::string_view name;
  Grade grade;
  const char* advice;
};
constexpr std::array kMeanings = {
    Meaning{"driver", Grade::kBad,
            "install NVIDIA's driver; in a container, give it the GPU (docker run --gpus all); without a "
            "GPU, see "
            "spillway dryrun"},
    Meaning{"device", Grade::kBad,
            "look at nvidia-smi and at CUDA_VISIBLE_DEVICES; in a container, give it the GPU (docker run "
            "--gpus all)"},
    Meaning{"virtual_memory_management", Grade::kWarn,
            "update the driver; until then free memory that is apart is not joined, and nothing is spilled"},
    Meaning{"host_memory_mapped", Grade::kOk, ""},
    Meaning{"posix_file_handles", Grade::kWarn,
            "tensors cannot be shared between processes; use backend:malloc there"},
    Meaning{"spill_directory", Grade::kWarn,
            "set spill_dir to a folder on a disk with room, if memory is to be spilled"},
    Meaning{"io_uring", Grade::kWarn,
            "in a container, allow io_uring in its seccomp profile; until then the disk is used by threads"},
    Meaning{"direct_io", Grade::kWarn,
            "set spill_dir to a disk's own file system: ext4 or xfs, not an overlay or tmpfs"},
    Meaning{"locked_memory", Grade::kWarn,
            "raise it: ulimit -l unlimited, or docker run --ulimit memlock=-1"},
    Meaning{"huge_pages", Grade::kOk, ""},
    Meaning{"shared_memory", Grade::kWarn,
            "data loaders and NCCL need more: docker run --shm-size=8g, or in Kubernetes a volume of medium "
            "Memory at "
            "/dev/shm"},
    Meaning{
        "memory_limit_suffices", Grade::kWarn,
        "raise the container's memory, or lower what is pinned (pinned_limit): what is spilled there counts"},
    Meaning{"pytorch", Grade::kWarn, "pip install spillway, into the Python that trains"},
    Meaning{"pytorch_cuda", Grade::kBad,
            "install a PyTorch that is built for the driver's CUDA (pytorch.org, Get Started), or update the "
            "driver"},
    Meaning{"live_view", Grade::kWarn,
            "set live_dir to a folder that this user may write; until then top shows nothing"},
};

}  // namespace

const char* word_of(Grade grade) {
  switch (grade) {
    case Grade::kOk:
      return "ok";
    case Grade::kWarn:
      return "warn";
    case Grade::kBad:
      break;
  }
  return "bad";
}

Graded grade_of(const Check& check) {
  if (check.answer != CheckAnswer::kNo) return {};
  for (const Meaning& meaning : kMeanings) {
    if (meaning.name == check.name) return {meaning.grade, meaning.advice};
  }
  // Such a check says that a probe did not find what it relied on: its profile says what follows.
  if (check.name.starts_with("probe_"))
    return {Grade::kWarn, "install() takes the profile that --probe kept"};
  return {};
}

}  // namespace spillway
