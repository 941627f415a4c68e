//! The published ports of an agent, from its parts.

use std::sync::Arc;

use herdlet_services::catalog::Catalogs;

use crate::{
    instance::Instance,
    networks::Permission,
    publish::ReadModel,
    published::{Places, PublishedParts, PublishedServices},
};

/// Changes nothing yet.
pub(super) fn open(
    instance: &Instance,
    places: Places,
    catalogs: &Catalogs,
    model: &Arc<ReadModel>,
) -> Arc<PublishedServices> {
    let parts = PublishedParts {
        instance: instance.id.0.clone(),
        places,
        permission: Permission::probe(),
        catalogue: Arc::clone(&catalogs.built_in),
        model: Arc::clone(model),
    };
    Arc::new(PublishedServices::new(parts, &instance.paths))
}
