//! Images of containers, without an engine.
//!
//! In: names of images as users write them, files with credentials, hosts of registries. Out: the contents of the documents of an
//! image, checked and within bounds; its layers in directories. A registry
//! and an archive are not trusted: nothing that they send is used before its digest and its size agree with the document that led to it.
//!
//! | part | contents |
//! | --- | --- |
//! | `reference` | names of images |
//! | `digest`, `media`, `platform` | digests, media types, platforms |
//! | `document`, `config` | indexes and manifests; the defaults of containers of an image |
//! | `credentials` | credentials of registries |
//! | `registries` | their mirrors and authorities |
//! | `registry`, `progress` | fetching images and their layers from registries |
//! | `store` | images of this machine, unpacked |

pub mod config;
pub mod credentials;
pub mod digest;
pub mod document;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod media;
pub mod platform;
pub mod progress;
mod reference;
pub mod registries;
pub mod registry;
pub mod store;

pub use reference::{DOCKER_HUB, Reference, ReferenceError};
