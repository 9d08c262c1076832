// A training step as PyTorch's autograd runs it, with sizes in the place of tensors. The forward pass of a
// model is written in operators (operators.h) in the order of its Python code; a tensor lives as long as a
// variable, a saved reference or a gradient buffer holds it. So the largest sum of live bytes follows from
// what the code does, at whatever moment it comes.
//
// Rules: a node frees the gradients it was given and then what it saved, once its own results are there; a
// second gradient for one tensor is added in place where nothing else holds the first one's storage, which a
// view's base does (torch/csrc/autograd/engine.cpp, evaluate_function; input_buffer.cpp, accumulate). Blocks
// are whole lines of 512 bytes.
//
// Not known here: models, layers, kernels. Cost: some 50 ns for each operator; equal layers are played four
// times and counted as many times as there are. Not for use by several threads.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

namespace spillway::estimator {

// Says what bytes are for, in the answer.
enum class Purpose {
  kEmbeddings,
  kNorms,  // and the residual stream
  kAttention,
  kScores,
  kMlp,
  kExperts,
  kAdapters,
  kLoss,
  kInputs,      // of layers that are recomputed
  kRecomputed,  // what recomputation brings back
  kCopies,      // of weights, in 16 bits
  kCache,       // keys and values that nothing but a cache holds
  kGradients,   // of weights
  kPassing,     // gradients of activations and what operators need while they run
  kConvolutions,
  kImageCoder,  // between pixels and latents
};
constexpr size_t kPurposes = 16;
using PurposeBytes = std::array<double, kPurposes>;

class Tape;

// A reference to a storage; the storage's bytes are live while there is one.
class Share {
 public:
  Share() = default;
  Share(const Share& other);
  Share(Share&& other) noexcept
      : tape_(std::exchange(other.tape_, nullptr)), index_(other.index_), is_view_(other.is_view_) {}
  Share& operator=(Share other) noexcept {
    std::swap(tape_, other.tape_);
    std::swap(index_, other.index_);
    std::swap(is_view_, other.is_view_);
    return *this;
  }
  ~Share();

  explicit operator bool() const { return tape_ != nullptr; }
  void reset() { *this = Share(); }
  // The same as a view, whose base stays.
  Share view() && {
    is_view_ = true;
    return std::move(*this);
  }

 private:
  friend class Tape;
  Share(Tape* tape, size_t index) : tape_(tape), index_(index) {}

  Tape* tape_ = nullptr;
  size_t index_ = 0;
  bool is_view_ = false;
};

// A node's output or a weight; none where no gradient is asked for.
struct Edge {
  static constexpr int64_t kNone = -1;
  int64_t node = kNone;  // below kNone: the weight -2 - node
  int64_t slot = 0;

  bool any() const { return node != kNone; }
};

struct Tensor {
  Share data = {};
  double elements = 0;
  double element = 0;  // bytes of one
  Edge edge = {};

  double bytes() const { return elements * element; }
  bool needs_gradient() const { return edge.any(); }
  void reset() { *this = Tensor(); }
  // The same storage as another tensor.
  Tensor view(double of_elements) const { return {data, of_elements, element, edge}; }
  Tensor detached() const { return {data, elements, element, {}}; }
};

// Holds what a node's backward formula works with.
class Backward {
 public:
  // `recomputed`: what the node saved, where that was brought back by a recomputation.
  Backward(Tape& tape, std::vector<Share>& gradients, std::vector<Share>& results,
           std::vector<Share>* recomputed = nullptr)
      : tape_(tape), gradients_(gradients), results_(results), recomputed_(recomputed) {}

  Tape& tape() { return tape_; }
  // This is that of the node's output; empty where none came.
  Share& gradient(size_t slot = 0) { return gradients_[slot]; }
  Share make(double bytes);
  // For the node's input of that number.
  void give(size_t input, Share gradient) { results_[input] = std::move(gradient); }
  // Ends the formula itself: what follows is done to its results (validate_outputs). What was recomputed is
  // gone once it has been read (torch/utils/checkpoint.py, unpack_hook), other saved tensors stay.
  void end_formula() {
    if (recomputed_ != nullptr) recomputed_->clear();
  }

 private:
  Tape& tape_;
  std::vector<Share>& gradients_;
  std::vector<Share>& results_;
  std::vector<Share>* recomputed_;
};

using Formula = std::function<void(Backward&)>;
using Body = std::function<Tensor(const Tensor&)>;

// Gives a variable another value while this is there.
template <typename Value>
class Exchanged {
 public:
  Exchanged(Value& variable, Value value) : variable_(variable), before_(std::exchange(variable, value)) {}
  Exchanged(const Exchanged&) = delete;
  Exchanged& operator=(const Exchanged&) = delete;
  ~Exchanged() { variable_ = before_; }

 private:
  Value& variable_;
  Value before_;
};

class Tape {
 public:
  Tape() = default;
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // Gradients of weights are kept (false: they leave at once, as where they are sharded or were there
  // before).
  bool keeps_gradients = true;

  Share make_share(double bytes);
  Tensor make(double elements, double element);

  // A weight, which is no part of what is counted; its gradient is.
  Tensor weight(double elements, double element, bool trained = true);

  // Layers that share their weights: those that the first one made come again in their order. Ends with a
  // null pointer.
  void share_weights(std::vector<Tensor>* weights) {
    shared_weights_ = weights;
    next_shared_ = 0;
  }

  // While one is there, weights are a layer's own again.
  struct OwnWeights : Exchanged<std::vector<Tensor>*> {
    explicit OwnWeights(Tape& tape) : Exchanged(tape.shared_weights_, nullptr) {}
  };

  // Another tensor that a gradient is asked for.
  Tensor leaf(double elements, double element);

  // Trained weights so far, each layer as often as it is there.
  double trained_elements() const { return trained_elements_; }
  double trained_bytes() const { return trained_bytes_; }

  // A node over `inputs`, which starts with what it saves of them. `out` is what it makes; no node is made
  // where no input needs a gradient or gradients are off.
  class Recorder {
   public:
    Recorder(Tape& tape, std::vector<Edge> inputs);
    bool on() const { return on_; }
    void save(const Share& share);
    // Completes the node. `slots`: how many outputs it has.
    Edge finish(Formula formula, size_t slots = 1);

   private:
    Tape& tape_;
    std::vector<Edge> inputs_;
    std::vector<Share> saved_ = {};
    bool on_;
  };

  // While one is there, what recomputation saves is put into `by` too (null: it is not). For a graph that
  // something else refers to, so that it outlives the backward pass of its layer.
  struct AlsoHeld : Exchanged<std::vector<Share>*> {
    AlsoHeld(Tape& tape, std::vector<Share>* by) : Exchanged(tape.also_held_, by) {}
  };

  // While one is there, nodes hold what they save, in a layer that is recomputed too.
  struct OutsideRegion : Exchanged<int64_t> {
    explicit OutsideRegion(Tape& tape) : Exchanged(tape.region_, -1) {}
  };

  // While one is there, another model runs without gradients, whose weights are not among those that are
  // trained here.
  struct WithoutGradients {
    explicit WithoutGradients(Tape& tape)
        : gradients(tape.gradients_on_, false), other(tape.is_beside_, true) {}
    Exchanged<bool> gradients, other;
  };

  bool is_recomputing() const { return recomputing_ != nullptr; }

  // What is made from now on is for this; returns what was before.
  Purpose set_purpose(Purpose purpose) { return std::exchange(purpose_, purpose); }

  // Runs equal layers one after the other.
  Tensor repeat(int64_t count, Tensor input, const Body& body);

  // Runs a layer so that its backward pass runs it again (torch/utils/checkpoint.py). Re-entrant: the first
  // run records nothing, the second is a graph of its own. Else the second run brings back what the first
  // one's nodes had saved, and ends with the last of it.
  Tensor checkpoint(const Tensor& input, const Body& body, bool reentrant);

  // A layer returns this beside its result, and nothing asks for its gradient. Where a re-entrant checkpoint
  // is around it autograd makes zeros of it before the layer runs again (materialize_grads), holds them to
  // the end of its backward pass, and adds to them there.
  void return_beside(const Tensor& x) { beside_.push_back(x); }
  // The variable that holds what the last layer has returned is gone.
  void forget_beside() { beside_.clear(); }

  // From the last output, whose gradient is made here.
  void backward(const Tensor& loss);

  // Copies of weights that autocast keeps until it ends.
  std::vector<std::pair<Edge, Tensor>>& casts() { return casts_; }
  void end_autocast() { casts_.clear(); }
  // What the program holds, of each layer as often as it is there.
  struct Kept {
    Share share = {};
    double times = 1;
  };
  void keep(const Share& share, std::vector<Kept>& by) const { by.push_back({share, weight_times_}); }
  void let_go(std::vector<Kept>& kept);

  // Ends a model's forward pass: autocast and caches are gone. `copies_are_saved`: nodes hold weights' copies
  // on.
  void end_forward(bool copies_are_saved);

  double peak_bytes() const { return peak_; }
  const PurposeBytes& at_peak() const { return at_peak_; }
  double live_bytes() const { return live_; }
  double live_bytes(Purpose purpose) const { return of_[static_cast<size_t>(purpose)]; }
  // The peak from here on.
  void restart_peak();

 private:
  friend class Share;
  friend class Recorder;

  struct Storage {
    double bytes = 0;
    int64_t shares = 0;
    Purpose purpose = Purpose::kPassing;
  };
  struct Node {
    std::vector<Edge> inputs = {};
    std::vector<Share> saved = {};
    std::vector<Share> gradients = {};
    Formula formula = {};
    int64_t region = -1;  // that it was recorded in, of those that are recomputed
    size_t first_saved = 0;
    size_t saves = 0;
  };
  struct Weight {
    double bytes = 0;
    int64_t uses = 0;
    Share under_way = {};
    Share gradient = {};
  };
  // A layer that is recomputed without a graph of its own.
  struct Region {
    Body body = {};
    Tensor input = {};
    size_t saves = 0;
    bool recomputed = false;
    std::vector<Share> saved = {};
  };
  // Nodes of a layer that stands for more than itself.
  struct Repeated {
    size_t first = 0;
    size_t end = 0;
    double more = 0;
    PurposeBytes before = {};
  };

  void add(Purpose purpose, double bytes);
  void add_times(const PurposeBytes& before, double times);
  void release(size_t index);
  bool is_sole(const Share& share) const { return !share.is_view_ && storages_[share.index_].shares == 1; }
  Share accumulated(Share old, const Share& more);
  void deliver(const Edge& edge, Share gradient);
  void deliver_to_weight(Weight& weight, Share gradient);
  void recompute(Region& region);
  void run(Node node);
  void run_down_to(size_t base, bool outermost);

  std::vector<Storage> storages_ = {};
  std::vector<size_t> unused_ = {};
  std::deque<Node> nodes_ = {};
  std::deque<Weight> weights_ = {};
  std::deque<Region> regions_ = {};
  std::vector<Repeated> repeated_ = {};
  std::vector<std::pair<Edge, Tensor>> casts_ = {};
  Purpose purpose_ = Purpose::kEmbeddings;
  bool gradients_on_ = true;
  bool is_beside_ = false;
  bool in_backward_ = false;
  bool in_second_run_ = false;     // a re-entrant recomputation is under way
  bool stopped_ = false;           // what is made has no size: a recomputation has all it needs
  int64_t region_ = -1;            // that nodes are recorded in
  Region* recomputing_ = nullptr;  // whose saved tensors are collected
  std::vector<Tensor>* shared_weights_ = nullptr;
  size_t next_shared_ = 0;
  std::vector<Share>* also_held_ = nullptr;  // as AlsoHeld has set it
  std::vector<Tensor> beside_ = {};          // of the layer that runs, or was the last to do so
  PurposeBytes repeated_ones_ = {};          // of layers that are not played
  double weight_times_ = 1, trained_elements_ = 0, trained_bytes_ = 0;
  double live_ = 0, peak_ = 0;
  PurposeBytes of_ = {}, at_peak_ = {};
};

}  // namespace spillway::estimator
