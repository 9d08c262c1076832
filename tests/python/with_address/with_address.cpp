// Asks PyTorch's allocator for a block at an address, for which Python has no function. The answer is the
// error's text, empty where there was none, and valid until the next call.
#include <c10/cuda/CUDACachingAllocator.h>

#include <string>

extern "C" __attribute__((visibility("default"))) const char* allocate_with_address(void* address) {
  static std::string text;
  try {
    (void)c10::cuda::CUDACachingAllocator::allocateWithAddress(512, address);
    text.clear();
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  }
  return text.c_str();
}
