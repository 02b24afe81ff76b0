//! The processor's own clock, which machines whose instructions are translated
//! see as it is.

use std::time::{Duration, Instant};

/// How long it is looked at. The two clocks are read within a microsecond, so
/// that what is found is true to less than a tenth of a thousandth.
const TIME: Duration = Duration::from_millis(20);
/// How often both clocks are read for one reading that was not interrupted.
const READINGS: u32 = 20;

/// How often the time stamp counter (RDTSC) ticks in a millisecond; 0 for a
/// processor without one. Takes [`TIME`].
pub fn ticks_per_millisecond() -> u32 {
    let (began, first) = both();
    std::thread::sleep(TIME);
    let (ended, last) = both();
    let nanoseconds = ended.duration_since(began).as_nanos().max(1);
    let ticks = u128::from(last.wrapping_sub(first));
    u32::try_from(ticks * 1_000_000 / nanoseconds).unwrap_or(u32::MAX)
}

/// The time, and the counter at that time: of several readings the one that took
/// least.
fn both() -> (Instant, u64) {
    let read = || {
        let before = read_counter();
        let now = Instant::now();
        let after = read_counter();
        let took = after.wrapping_sub(before);
        (took, now, before.wrapping_add(took / 2))
    };
    let readings = (0..READINGS).map(|_| read());
    match readings.min_by_key(|&(took, ..)| took) {
        Some((_, now, counter)) => (now, counter),
        None => (Instant::now(), 0),
    }
}

#[cfg(target_arch = "x86_64")]
fn read_counter() -> u64 {
    // SAFETY: every processor of this architecture has the counter, and Linux
    // lets programs read it unless one asks to be killed for it
    // (PR_SET_TSC in prctl(2)), which this program never does.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn read_counter() -> u64 {
    0
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_counter_is_as_fast_the_second_time() {
        let [one, other] = [ticks_per_millisecond(), ticks_per_millisecond()];
        // A gigahertz or so, and about the same.
        assert!((100_000..20_000_000).contains(&one), "{one}");
        assert!(one.abs_diff(other) < one / 100, "{one} {other}");
    }
}
