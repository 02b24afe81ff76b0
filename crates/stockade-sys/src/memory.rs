//! Memory of this process.

use core::ffi::{c_int, c_void};

/// Gives back the pages of this program's code that this process has mapped: they
/// are the page cache's, which every process of the program shares, and are
/// mapped again where they are needed (MADV_DONTNEED, madvise(2)). Meant for who
/// will wait for long. Nothing is lost, and a failure changes nothing.
pub fn let_go_of_code() {
    // SAFETY: the callback has the type that is asked for and uses no data.
    unsafe { libc::dl_iterate_phdr(Some(let_go_of_first), core::ptr::null_mut()) };
}

/// For the first object, which is the program itself (dl_iterate_phdr(3)).
unsafe extern "C" fn let_go_of_first(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    _data: *mut c_void,
) -> c_int {
    // SAFETY: the caller passes an object that is valid during this call.
    let object = unsafe { &*object };
    // SAFETY: it has this many headers there, which last as long as itself.
    let headers =
        unsafe { core::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let page = rustix::param::page_size() as u64;
    for header in headers {
        let is_code = header.p_type == libc::PT_LOAD
            && header.p_flags & libc::PF_X != 0
            && header.p_flags & libc::PF_W == 0;
        if !is_code {
            continue;
        }
        // Whole pages that hold nothing else.
        let first = (object.dlpi_addr + header.p_vaddr).next_multiple_of(page);
        let end = object.dlpi_addr + header.p_vaddr + header.p_filesz;
        let length = (end - end % page).saturating_sub(first);
        // SAFETY: the pages are a private mapping of a file that can be executed
        // and was never written to, so that what they hold is what the file
        // holds, and the kernel maps that again.
        unsafe { libc::madvise(first as *mut c_void, length as usize, libc::MADV_DONTNEED) };
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of files that this process has mapped (proc_pid_status(5)), in KiB.
    fn of_files() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("RssFile:"));
        let words = line.unwrap().split_whitespace().nth(1);
        words.unwrap().parse().unwrap()
    }

    #[test]
    fn code_goes_and_is_there_again_when_it_is_needed() {
        // Other tests of this process map code meanwhile.
        let goes = || {
            let before = of_files();
            let_go_of_code();
            of_files() < before
        };
        assert!((0..10).any(|_| goes()));
        assert_eq!("17".parse(), Ok(17));
    }
}
