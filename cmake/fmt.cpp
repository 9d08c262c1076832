// fmt's functions, compiled once for the whole project: as a header alone they cost every file that formats a
// line four seconds of compiling, and as the machine's library they would have to be on every other machine
// too.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

// The templates whose instances fmt's headers promise to be elsewhere.
template FMT_API auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;
template FMT_API void buffer<char>::append(const char*, const char*);

}  // namespace detail
FMT_END_NAMESPACE
