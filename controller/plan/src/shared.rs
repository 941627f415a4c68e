//! What allocations share: claimed by them, reconciled under its own key.
pub mod volume;
