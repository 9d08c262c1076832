#include "sim/nccl/reduce.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace spillway::nccl {
namespace {

// A floating-point type of at most 16 bits.
struct SmallFloat {
  int exponent_bits;
  int mantissa_bits;
  bool finite;  // float8_e4m3: no infinity, one NaN
};

constexpr SmallFloat kHalf{5, 10, false};
constexpr SmallFloat kBrain{8, 7, false};
constexpr SmallFloat kE4m3{4, 3, true};
constexpr SmallFloat kE5m2{5, 2, false};

double decode(SmallFloat format, uint32_t bits) {
  const uint32_t mantissa = bits & ((1u << format.mantissa_bits) - 1);
  const uint32_t most = (1u << format.exponent_bits) - 1;
  const uint32_t exponent = (bits >> format.mantissa_bits) & most;
  const bool negative = ((bits >> (format.mantissa_bits + format.exponent_bits)) & 1) != 0;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  double value = 0;
  if (exponent == most && !format.finite) {
    value =
        mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == most && mantissa == (1u << format.mantissa_bits) - 1) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<double>(mantissa), 1 - bias - format.mantissa_bits);
  } else {
    value = std::ldexp(static_cast<double>(mantissa | (1u << format.mantissa_bits)),
                       static_cast<int>(exponent) - bias - format.mantissa_bits);
  }
  return negative ? -value : value;
}

// Rounds to the nearest, ties to even.
uint32_t encode(SmallFloat format, double value) {
  const uint32_t sign = (std::signbit(value) ? 1u : 0u) << (format.mantissa_bits + format.exponent_bits);
  const uint32_t most = (1u << format.exponent_bits) - 1;
  const uint32_t infinity = most << format.mantissa_bits;
  const uint32_t whole_mantissa = (1u << format.mantissa_bits) - 1;
  if (std::isnan(value)) return sign | infinity | whole_mantissa;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  int exponent = 0;
  const double size = std::fabs(value);
  (void)std::frexp(size, &exponent);  // size is below 2^exponent
  const int unit = std::max(exponent - 1, 1 - bias) - format.mantissa_bits;
  const double units = size == 0 ? 0 : std::nearbyint(std::ldexp(size, -unit));
  const double limit = format.finite ? static_cast<double>(infinity | (whole_mantissa - 1)) : infinity;
  // In units of the lowest binade the encodings of numbers are consecutive.
  const double steps = unit + format.mantissa_bits - (1 - bias);
  const double encoded = size == 0 || std::isinf(size)
                             ? (size == 0 ? 0 : limit + 1)
                             : units + steps * static_cast<double>(1u << format.mantissa_bits);
  if (encoded > limit) return sign | (format.finite ? infinity | whole_mantissa : infinity);
  return sign | static_cast<uint32_t>(encoded);
}

template <typename Bits, int kWhich>
struct Narrow {
  static constexpr SmallFloat kFormat = kWhich == kFloat16      ? kHalf
                                        : kWhich == kBfloat16   ? kBrain
                                        : kWhich == kFloat8E4m3 ? kE4m3
                                                                : kE5m2;
  Bits bits;
  double number() const { return decode(kFormat, bits); }
  static Narrow of(double value) { return {static_cast<Bits>(encode(kFormat, value))}; }
};

template <typename Item>
auto number_of(Item item) {
  if constexpr (std::is_integral_v<Item>) {
    return static_cast<std::conditional_t<std::is_signed_v<Item>, int64_t, uint64_t>>(item);
  } else if constexpr (std::is_floating_point_v<Item>) {
    return static_cast<double>(item);
  } else {
    return item.number();
  }
}

template <typename Item, typename Number>
Item item_of(Number number) {
  if constexpr (std::is_arithmetic_v<Item>) {
    return static_cast<Item>(number);
  } else {
    return Item::of(number);
  }
}

template <typename Number>
Number power(Number base, uint64_t exponent) {
  if constexpr (std::is_floating_point_v<Number>) {
    return std::pow(base, static_cast<double>(exponent));
  } else {
    uint64_t result = 1;
    for (uint64_t factor = static_cast<uint64_t>(base); exponent > 0; exponent >>= 1, factor *= factor) {
      if ((exponent & 1) != 0) result *= factor;
    }
    return static_cast<Number>(result);
  }
}

// Signed integers wrap as unsigned ones do.
template <typename Number>
Number combine(int reduction, Number sum, Number next, const Part& part) {
  if (reduction == kMaximum) return std::max(sum, next);
  if (reduction == kMinimum) return std::min(sum, next);
  if constexpr (std::is_floating_point_v<Number>) {
    if (reduction == kProduct) return sum * power(next, part.times);
    return sum + next * part.scalar * static_cast<double>(part.times);
  } else {
    const auto left = static_cast<uint64_t>(sum);
    const auto right = static_cast<uint64_t>(next);
    if (reduction == kProduct) return static_cast<Number>(left * power(right, part.times));
    return static_cast<Number>(left + right * static_cast<uint64_t>(part.scalar) * part.times);
  }
}

template <typename Item>
void reduce_items(int reduction, uint64_t count, const std::vector<Part>& parts, uint64_t ranks, char* out) {
  using Number = decltype(number_of(Item{}));
  for (uint64_t i = 0; i < count; ++i) {
    Number sum = reduction == kProduct ? Number{1} : Number{0};
    for (size_t part = 0; part < parts.size(); ++part) {
      Item item;
      std::memcpy(&item, parts[part].bytes + i * sizeof item, sizeof item);
      const Number next = number_of(item);
      const bool is_first_extreme = part == 0 && (reduction == kMaximum || reduction == kMinimum);
      sum = is_first_extreme ? next : combine(reduction, sum, next, parts[part]);
    }
    if (reduction == kAverage) sum = sum / static_cast<Number>(ranks);
    const Item item = item_of<Item>(sum);
    std::memcpy(out + i * sizeof item, &item, sizeof item);
  }
}

// Calls the function with an item of the type.
template <typename Function>
auto with_type(int type, Function function) {
  switch (type) {
    case kInt8:
      return function(int8_t{});
    case kUint8:
      return function(uint8_t{});
    case kInt32:
      return function(int32_t{});
    case kUint32:
      return function(uint32_t{});
    case kInt64:
      return function(int64_t{});
    case kUint64:
      return function(uint64_t{});
    case kFloat16:
      return function(Narrow<uint16_t, kFloat16>{});
    case kFloat32:
      return function(float{});
    case kFloat64:
      return function(double{});
    case kBfloat16:
      return function(Narrow<uint16_t, kBfloat16>{});
    case kFloat8E4m3:
      return function(Narrow<uint8_t, kFloat8E4m3>{});
    default:
      return function(Narrow<uint8_t, kFloat8E5m2>{});
  }
}

}  // namespace

std::vector<char> reduce(int type, int reduction, uint64_t count, const std::vector<Part>& parts,
                         uint64_t ranks) {
  std::vector<char> out(count * item_bytes(type));
  with_type(type,
            [&](auto item) { reduce_items<decltype(item)>(reduction, count, parts, ranks, out.data()); });
  return out;
}

double read_number(int type, const char* at) {
  return with_type(type, [&](auto item) {
    std::memcpy(&item, at, sizeof item);
    return static_cast<double>(number_of(item));
  });
}

}  // namespace spillway::nccl
