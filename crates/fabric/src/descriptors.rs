//! Descriptors, of which a process has only so many.

/// How many descriptors this process may have.
pub fn descriptors_most() -> usize {
    let unlimited = libc::RLIM_INFINITY;
    let mut limit = libc::rlimit { rlim_cur: unlimited, rlim_max: unlimited };
    // SAFETY: writes to what lives during the call. Of the own process, and of what the kernel knows, it tells.
    let _ = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur as usize
}
