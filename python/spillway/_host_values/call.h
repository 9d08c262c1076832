// One call of an operator beside its kernels: what its arguments hold is taken before they run, the operator
// is computed on the host once they have, and what comes out is written where they would have written it. So
// what the allocator sees is what it would see, and a kernel that is made of other operators changes no
// argument before it is read.
#pragma once

#include <ATen/record_function.h>

#include <vector>

#include "operators.h"
#include "reality.h"

namespace spillway::values {

enum class Wanted : uint8_t { kSmall, kAll };

struct Settings {
  Wanted wanted = Wanted::kSmall;
  // Bytes up to which an operator is computed: of all its tensors; of the largest, where its results are
  // integers, and where their sizes depend on values.
  uint64_t small_bytes = uint64_t{64} << 10;
  uint64_t integer_bytes = uint64_t{16} << 20;
  uint64_t counted_bytes = uint64_t{1} << 30;
  // Told of each read of values that are not real. Tells whether the answer must be another one than is
  // there: the program waits for that.
  std::atomic<int (*)(const char* name, int64_t bytes)> report_read = nullptr;
  // And of an operator that the host could not compute.
  std::atomic<void (*)(const char* name, const char* why)> report_failure = nullptr;
};
extern Settings settings;
bool report_read(const Operator& op, int64_t bytes);
void report_failure(const Operator& op, const char* why);
extern Reality reality;

struct Totals {
  std::atomic<uint64_t> computed{0};
  std::atomic<uint64_t> too_large{0};
  std::atomic<uint64_t> failed{0};
};
extern Totals totals;

// What the host computes here is not observed.
class Unobserved {
 public:
  Unobserved();

 private:
  at::RecordFunctionGuard off_{false};
  c10::impl::ExcludeDispatchKeyGuard exclude_;
};

struct Beside : public at::ObserverContext {
  // After the kernels have run.
  virtual void finish(const std::vector<IValue>& outputs) = 0;
};

// One whose results nobody computes.
class Unknown final : public Beside {
 public:
  explicit Unknown(const Operator& op) : op_(op) {}
  void finish(const std::vector<IValue>& outputs) override;

 private:
  const Operator& op_;
};

class Call final : public Beside {
 public:
  enum class Way : uint8_t {
    kMark,
    kCompute,
    kFollow
  };  // kFollow: on the host, which has computed it itself

  Call(const Operator& op, Way way, Arguments arguments);
  ~Call() override;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Says of the operator whether it makes integers of what are none.
  void note_type_of_results() { notes_type_ = true; }
  // Says of a copy that nobody knows what lies in its source: the driver need not move it.
  void move_nothing();
  // Before the kernels run.
  void prepare(c10::Device device);
  void finish(const std::vector<IValue>& outputs) override;
  static bool is_answered() { return answered_ != 0; }

 private:
  void take_what_is_written();
  void take_argument(size_t index);
  void compute_counted();
  void compute_and_write(const std::vector<IValue>& outputs);
  std::vector<IValue> compute(bool gives_integers);
  void write(const std::vector<IValue>& outputs, const std::vector<IValue>& results);
  void set_written(const at::Tensor& tensor, bool is_written) const;
  void mark(const std::vector<IValue>& outputs, Level level);
  void note_type(const std::vector<IValue>& outputs) const;
  void follow_copy();
  bool is_wanted(const std::vector<IValue>& outputs, bool gives_integers) const;
  Level level_read() const;
  IValue host_of(const IValue& value, const Argument& argument) const;
  void fail(const char* why) const;

  const Operator& op_;
  Way way_;
  std::vector<IValue> arguments_;
  std::vector<IValue> hosts_;  // of arguments, as they are taken; None: not yet
  std::vector<IValue> counted_;
  bool is_counted_ = false;
  Level level_ = Level::kReal;            // of all that is read
  Level level_of_others_ = Level::kReal;  // than those of which it writes some elements
  bool has_no_index_ = false;             // an integer is what lay in memory
  bool draws_ = false;
  bool notes_type_ = false;
  bool moves_nothing_ = false;
  uint64_t seed_ = 0;
  int exceptions_;
  static thread_local int answered_;
};

}  // namespace spillway::values
