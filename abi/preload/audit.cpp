// libspillway_audit.so, an auditor of the dynamic loader (LD_AUDIT) beside the preload library: for libraries
// that a program opens with RTLD_DEEPBIND, whose look-ups find the C library's dlsym and the driver's own
// functions before anything that was preloaded. The loader asks here about each function of the driver's that
// an object is bound to, and is told the one of this name that the preload library exports.
//
// An auditor has a namespace of its own, with libraries of its own: this one needs none, since a second C
// library would cost each process of a job a fifth of a millisecond. It only reads what the loader shows,
// with the loader's lock held.
#include <elf.h>
#include <link.h>

#include <cstdint>

#define SPW_AUDIT extern "C" __attribute__((visibility("default")))

namespace spillway::preload {
namespace {

// Says what an object is here; the loader keeps it for us.
enum Role : uintptr_t { kOther, kProgram, kSpillway, kDriver };

const link_map* preload_library = nullptr;

bool begins_with(const char* text, const char* beginning) {
  for (; *beginning != '\0'; ++text, ++beginning) {
    if (*text != *beginning) return false;
  }
  return true;
}

bool is_same(const char* one, const char* other) {
  for (; *one != '\0' && *one == *other; ++one, ++other) {
  }
  return *one == *other;
}

const char* file_name(const char* path) {
  const char* name = path;
  for (; *path != '\0'; ++path) {
    if (*path == '/') name = path + 1;
  }
  return name;
}

bool is_driver_name(const char* symbol) {
  return begins_with(symbol, "cu") && symbol[2] >= 'A' && symbol[2] <= 'Z';
}

Role role_of(const link_map& object, Lmid_t space) {
  // Another namespace's driver is another driver.
  if (space != LM_ID_BASE) return kOther;
  const char* name = file_name(object.l_name);
  // What Spillway looks up is for itself.
  if (begins_with(name, "libspillway")) return kSpillway;
  return begins_with(name, "libcuda.so") ? kDriver : kProgram;
}

// Finds a table of the object's dynamic section, whose addresses the loader has made absolute; null where it
// has none.
template <typename Table>
const Table* table_of(const link_map& object, ElfW(Sxword) tag) {
  for (const ElfW(Dyn)* entry = object.l_ld; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == tag) return reinterpret_cast<const Table*>(entry->d_un.d_ptr);
  }
  return nullptr;
}

// The preload library exports a hundred names and has the plain kind of hash table, which tells how many.
uintptr_t find_hook(const char* symbol) {
  if (preload_library == nullptr) return 0;
  const auto* symbols = table_of<ElfW(Sym)>(*preload_library, DT_SYMTAB);
  const auto* names = table_of<char>(*preload_library, DT_STRTAB);
  const auto* hash = table_of<ElfW(Word)>(*preload_library, DT_HASH);
  if (symbols == nullptr || names == nullptr || hash == nullptr) return 0;
  const ElfW(Word) count = hash[1];
  for (ElfW(Word) i = 0; i < count; ++i) {
    if (symbols[i].st_shndx != SHN_UNDEF && is_same(names + symbols[i].st_name, symbol))
      return preload_library->l_addr + symbols[i].st_value;
  }
  return 0;
}

}  // namespace
}  // namespace spillway::preload

// The interface of glibc 2.35. Older loaders do not tell of what is bound at once, and make calls dearer
// wherever there is an auditor: with 0 they forget this one.
SPW_AUDIT unsigned la_version(unsigned offered) {
  constexpr unsigned kVersion = 2;
  return offered < kVersion ? 0 : kVersion;
}

// The loader asks about look-ups from and to what is marked here, and no others: nothing in a program without
// a driver.
SPW_AUDIT unsigned la_objopen(link_map* object, Lmid_t space, uintptr_t* cookie) {
  using namespace spillway::preload;
  const Role role = role_of(*object, space);
  *cookie = role;
  if (role == kSpillway && is_same(file_name(object->l_name), "libspillway_preload.so"))
    preload_library = object;
  if (role == kProgram) return LA_FLG_BINDFROM;
  return role == kDriver ? LA_FLG_BINDTO : 0;
}

// Once for each binding, by a relocation or by dlsym. What the flags say keeps the loader from telling of
// calls.
SPW_AUDIT uintptr_t la_symbind64(ElfW(Sym) * symbol, unsigned, uintptr_t* from, uintptr_t* to,
                                 unsigned* flags, const char* name) {
  using namespace spillway::preload;
  *flags |= LA_SYMB_NOPLTENTER | LA_SYMB_NOPLTEXIT;
  if (*from != kProgram || *to != kDriver || !is_driver_name(name)) return symbol->st_value;
  const uintptr_t hook = find_hook(name);
  return hook != 0 ? hook : symbol->st_value;
}
