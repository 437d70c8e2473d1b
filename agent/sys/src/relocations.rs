//! What the loader of programs does at their start, where a C library has it in none of a static program's.

/// What this program was linked with, in words.
pub const C_LIBRARY: &str = if cfg!(target_env = "musl") { "musl" } else { "glibc" };

/// Has what the start of this program relocated, tables of functions above all, never be written again. glibc's start does so by itself, musl's
/// does not. A kernel that refuses has it stay as it was, which keeps no program from its work.
pub fn close_relocations() {
    if cfg!(target_env = "musl") {
        // SAFETY: the callback is one, and takes no data.
        unsafe { libc::dl_iterate_phdr(Some(close_those_of), std::ptr::null_mut()) };
    }
}

/// Ends the walk with the first object, which is the program.
unsafe extern "C" fn close_those_of(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    _data: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the library's own description of this program, alive through the call; nothing is written there from here on.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE).max(1) as usize;
        let headers = std::slice::from_raw_parts((*object).dlpi_phdr, usize::from((*object).dlpi_phnum));
        for header in headers.iter().filter(|header| header.p_type == libc::PT_GNU_RELRO) {
            let from = (*object).dlpi_addr as usize + header.p_vaddr as usize;
            let [first, end] = [from, from + header.p_memsz as usize].map(|at| at - at % page);
            libc::mprotect(first as *mut libc::c_void, end - first, libc::PROT_READ);
        }
    }
    1
}
