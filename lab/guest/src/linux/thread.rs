//! The end of one thread of another process, as a bug or a stray `exit(2)` would end it: the process goes on.

use std::io;

/// `exit(2)` on x86-64, which ends a thread.
const SYS_EXIT: u64 = 60;
/// Length of the instruction `syscall`.
const SYSCALL_BYTES: u64 = 2;

/// Makes a thread that waits in a system call execute `exit` in its place.
///
/// # Errors
/// The kernel's error, for example if there is no such thread.
pub(crate) fn end(thread: libc::pid_t) -> io::Result<()> {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: these requests take no pointers. The thread is stopped when waitpid returns.
    unsafe {
        checked(libc::ptrace(libc::PTRACE_ATTACH, thread, none, none))?;
        super::checked(libc::waitpid(thread, std::ptr::null_mut(), libc::__WALL))?;
    }
    // SAFETY: user_regs_struct is plain data, for which all zeroes is valid.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: the thread is stopped by this process, and `registers` lives across both calls.
    unsafe {
        checked(libc::ptrace(libc::PTRACE_GETREGS, thread, none, &raw mut registers))?;
        registers.rip -= SYSCALL_BYTES;
        registers.rax = SYS_EXIT;
        registers.rdi = 0;
        // The kernel must not restart the call that the stop has interrupted.
        registers.orig_rax = u64::MAX;
        checked(libc::ptrace(libc::PTRACE_SETREGS, thread, none, &raw const registers))?;
        checked(libc::ptrace(libc::PTRACE_DETACH, thread, none, none))
    }
}

fn checked(result: libc::c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
