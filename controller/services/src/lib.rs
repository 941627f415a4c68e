//! Where services are registered, and the checks that say whether they work.
//!
//! In: registrations, checks. Out: catalogues that agree with them, results. It does not know what a result changes.

pub mod catalog;
pub mod checks;
pub mod report;
