//! Namespaces: `default`, and those of jobs and variables. They are not created or removed by request; each exists while it
//! has a job or a variable.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use axum::{
    extract::{Path, State},
    response::Response,
};
use serde_json::{Value, json};

use super::{
    Shared,
    error::{ApiError, ApiResult},
    list::Listed,
    query::{Params, Read},
};

struct Namespace(String);

impl Listed for Namespace {
    fn namespace(&self) -> Option<&str> {
        None
    }

    fn id(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.0)
    }

    fn create_index(&self) -> u64 {
        1
    }
}

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let found = |shared: &Shared| Ok(names(shared).into_iter().map(Namespace).collect());
    shared.list(&read, found, |_, Namespace(name)| to_json(name)).await
}

pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Response> {
    let one = |shared: &Shared| {
        let known = names(shared).contains(&name);
        known.then(|| to_json(&name)).ok_or_else(|| ApiError::NotFound("namespace not found".to_owned()))
    };
    shared.answer(&read, one).await
}

pub(super) fn names(shared: &Shared) -> BTreeSet<String> {
    let of_jobs = shared.model.jobs().into_iter().map(|view| view.key.namespace.to_string());
    let of_variables = shared.variables.store().list().into_iter().map(|variable| variable.namespace);
    of_jobs.chain(of_variables).chain(["default".to_owned()]).collect()
}

fn to_json(name: &str) -> Value {
    let description = if name == "default" { "Default shared namespace" } else { "" };
    json!({
        "Name": name, "Description": description, "Quota": "", "Capabilities": null, "Meta": null,
        "NodePoolConfiguration": null, "VaultConfiguration": null, "ConsulConfiguration": null,
        "CreateIndex": 1, "ModifyIndex": 1,
    })
}
