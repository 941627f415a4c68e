//! How far a pull is.

use std::fmt;

/// What a pull has fetched so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    pub done_bytes: u64,
    /// 0 until it is known how much is to be fetched.
    pub total_bytes: u64,
    pub layers: usize,
}

/// Empty until it is known how much is to be fetched.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { done_bytes: done, total_bytes: total, layers } = *self;
        let Some(percent) = (u128::from(done) * 100).checked_div(u128::from(total)) else { return Ok(()) };
        write!(f, "{} of {} MiB ({percent} %) in {layers} layers", done >> 20, total >> 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_readable_once_the_total_is_known() {
        let text = |done_bytes, total_bytes| Progress { done_bytes, total_bytes, layers: 2 }.to_string();
        assert_eq!(text(0, 0), "");
        assert_eq!(text(3 << 20, 6 << 20), "3 of 6 MiB (50 %) in 2 layers");
        assert_eq!(text(u64::MAX, u64::MAX), "17592186044415 of 17592186044415 MiB (100 %) in 2 layers");
    }
}
