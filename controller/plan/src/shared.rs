//! What allocations share: claimed by them, reconciled under a key of its own.
pub mod volume;
