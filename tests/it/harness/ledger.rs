//! The ledger of `outboxd demo`, as an assertion.

pub(crate) use outboxd::demo::ledger::{Ledger, Seen, Verdict, Written, bound};

/// The verdict as an assertion.
pub(crate) trait AssertClean {
    /// Nothing lost, nothing made up, everything in order, repeats within the bound; prints the numbers.
    fn assert_clean(&self, test: &str, bound: usize);
}

impl AssertClean for Verdict {
    #[track_caller]
    fn assert_clean(&self, test: &str, bound: usize) {
        println!("{test}: {self} repeats_bound={bound}");
        assert!(self.is_clean(bound), "{test}: {self} repeats_bound={bound}\n{}", self.examples());
    }
}
