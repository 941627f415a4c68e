//! Images of containers, without an engine.
//!
//! In: names of images as people write them, documents of images, files with credentials. Out: what the documents say, checked
//! and within bounds; credentials. Nobody uses the documents yet. A registry and an archive are strangers: nothing that they send is
//! believed before its digest and its size agree with the document that led to it.
//!
//! | part | contents |
//! | --- | --- |
//! | `reference` | names of images |
//! | `digest`, `media`, `platform` | digests, media types, platforms |
//! | `document`, `config` | indexes and manifests; what an image says about its containers |
//! | `credentials` | credentials of registries |

pub mod config;
pub mod credentials;
pub mod digest;
pub mod document;
pub mod media;
pub mod platform;
mod reference;

pub use reference::{DOCKER_HUB, Reference, ReferenceError};
