//! The parts of an artifact's specification: source, checksum, format, destination.
//!
//! Input: strings from a job. Output: types. Nothing is fetched or unpacked here.

pub mod checksum;
pub mod format;
pub mod place;
pub mod source;
