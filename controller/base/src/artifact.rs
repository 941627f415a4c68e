//! What is written of an artifact: where it comes from, its checksum, its format, where it goes.
//!
//! In: texts of a job. Out: types. Nothing is fetched or unpacked here.

pub mod checksum;
pub mod format;
pub mod place;
pub mod source;
