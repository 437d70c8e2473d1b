//! A file system of a test.

use std::ffi::CString;

/// A file system that is unmounted at the end.
pub struct Mount(CString);

impl Mount {
    pub fn tmpfs(path: &str, options: &std::ffi::CStr) -> Mount {
        std::fs::create_dir(path).expect("made");
        let target = CString::new(path).expect("a name");
        // SAFETY: C strings.
        let mounted =
            unsafe { libc::mount(c"t".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, options.as_ptr().cast()) };
        assert_eq!(mounted, 0);
        Mount(target)
    }

    pub fn make_read_only(&self) {
        // SAFETY: a C string.
        let flags = libc::MS_REMOUNT | libc::MS_RDONLY;
        // SAFETY: every pointer is a string that outlives the call.
        let done = unsafe { libc::mount(c"t".as_ptr(), self.0.as_ptr(), c"tmpfs".as_ptr(), flags, std::ptr::null()) };
        assert_eq!(done, 0);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // SAFETY: a C string.
        unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
    }
}
