//! The state database under refusal, damage and crashes.

mod crash;
mod damage;
mod fixture;
mod forgotten;
mod refuse;
mod whole;
