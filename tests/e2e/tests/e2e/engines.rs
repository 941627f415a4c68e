//! Tests that stop, freeze or fill container engines: each has engines of its own.

mod daemon;
mod disk;
mod fixture;
mod networks;
