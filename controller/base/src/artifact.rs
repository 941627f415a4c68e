//! The parts of an artifact's specification: source, checksum, format, destination.
//!
//! In: strings from a job. Out: types. Nothing is fetched or unpacked here.

pub mod checksum;
pub mod destination;
pub mod format;
pub mod source;
