// NCCL's numbers, as its header has them, and names for people. The header itself is not needed to build
// this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace spillway::nccl {

// ncclResult_t
enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
};

// ncclDataType_t
enum Type : int {
  kInt8 = 0,
  kUint8,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat16,
  kFloat32,
  kFloat64,
  kBfloat16,
  kFloat8E4m3,
  kFloat8E5m2,
  kTypes
};
constexpr std::array<size_t, kTypes> kItemBytes{1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
constexpr std::array<const char*, kTypes> kTypeNames{"int8",    "uint8",    "int32",       "uint32",
                                                     "int64",   "uint64",   "float16",     "float32",
                                                     "float64", "bfloat16", "float8_e4m3", "float8_e5m2"};

inline bool is_type(int type) {
  return type >= 0 && type < kTypes;
}
inline uint64_t item_bytes(int type) {
  return kItemBytes[static_cast<size_t>(type)];
}
inline bool is_floating(int type) {
  return type >= kFloat16;
}

// ncclRedOp_t; from kPreMulSum on there are those that programs make.
enum Reduction : int { kSum = 0, kProduct, kMaximum, kMinimum, kAverage, kPreMulSum };

enum class Operation : uint8_t {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kSplit,
  kSend,
  kReceive,
  kJoin,
  kOperations
};
constexpr std::array<const char*, static_cast<size_t>(Operation::kOperations)> kOperationNames{
    "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter",
    "all_to_all", "split",     "send",   "recv",       "the start of a communicator"};

inline const char* name_of(Operation operation) {
  return kOperationNames[static_cast<size_t>(operation)];
}
inline bool is_transfer(Operation operation) {
  return operation == Operation::kSend || operation == Operation::kReceive;
}
inline bool has_root(Operation operation) {
  return operation == Operation::kBroadcast || operation == Operation::kReduce;
}
inline bool reduces(Operation operation) {
  return operation == Operation::kAllReduce || operation == Operation::kReduce ||
         operation == Operation::kReduceScatter;
}

}  // namespace spillway::nccl
