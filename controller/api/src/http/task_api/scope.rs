//! What the owner of a token may do through the Task API.
//!
//! In: a principal and a request. Out: whether it is permitted. A task reads the variables of its job and the services of
//! its namespace, as with Nomad's default identity; paths without ACLs are open to it too, and nothing else is. The handlers
//! of variables and services ask again with the values that they use.

use std::sync::Arc;

use axum::{
    extract::FromRequestParts,
    http::{Method, request::Parts},
};
use herdlet_api_types::variable::VariableKey;
use herdlet_variables::access::{TaskIdentity, may_read, readable};

use super::authority::{Principal, TaskPrincipal};
use crate::http::{
    DISCOVERY_PATH, JWKS_PATH,
    error::{ApiError, ApiResult},
};

/// What a task may read beside variables and services: nothing in them is about a job.
const OPEN_PATHS: [&str; 6] =
    ["/v1/agent/health", "/v1/status/leader", "/v1/status/peers", "/v1/regions", JWKS_PATH, DISCOVERY_PATH];

/// The sender of a request through the Task API. A request extension.
#[derive(Clone)]
pub(in crate::http) struct Requester {
    /// For the audit.
    name: Arc<str>,
    /// The task whose rights it has; none for an operator.
    task: Option<Arc<TaskPrincipal>>,
}

impl Requester {
    /// A sender through the socket of `owner`.
    pub(super) fn new(principal: Principal, owner: &str) -> Self {
        match principal {
            Principal::Operator => {
                Self { name: format!("a token on the Task API of {owner}").into(), task: None }
            }
            Principal::Task(task) => {
                let name = format!("task {} of allocation {}", task.task, task.alloc);
                Self { name: name.into(), task: Some(task) }
            }
        }
    }

    pub(in crate::http) fn name(&self) -> &str {
        &self.name
    }

    /// Whether a request with this path may reach its handler.
    pub(super) fn may_call(&self, method: &Method, path: &str) -> bool {
        let is_one = |rest: &str| !rest.is_empty() && !rest.contains('/');
        self.task.is_none()
            || (matches!(*method, Method::GET | Method::HEAD)
                && (path.starts_with("/v1/var/")
                    || matches!(path, "/v1/vars" | "/v1/services")
                    || path.strip_prefix("/v1/service/").is_some_and(is_one)
                    || OPEN_PATHS.contains(&path)))
    }

    /// Whether it may read this variable.
    pub(in crate::http) fn may_read(&self, namespace: &str, path: &str) -> bool {
        let Some(TaskPrincipal { namespace: own, job, group, task, .. }) = self.task.as_deref() else {
            return true;
        };
        may_read(TaskIdentity { namespace: own, job, group, task }, namespace, path)
    }

    /// The variables that it may read; `None` for all.
    fn readable(&self) -> Option<Vec<VariableKey>> {
        let TaskPrincipal { namespace, job, group, task, .. } = self.task.as_deref()?;
        Some(readable(TaskIdentity { namespace, job, group, task }))
    }

    /// Whether it may see anything of this namespace.
    pub(in crate::http) fn may_see(&self, namespace: &str) -> bool {
        self.task.as_ref().is_none_or(|task| task.namespace == namespace)
    }
}

/// The rights of a request: all, unless it comes through the Task API.
pub(in crate::http) struct Scope(Option<Requester>);

impl Scope {
    pub(in crate::http) fn may_read(&self, namespace: &str, path: &str) -> bool {
        self.0.as_ref().is_none_or(|requester| requester.may_read(namespace, path))
    }

    /// The variables that the request may read; `None` for all.
    pub(in crate::http) fn readable(&self) -> Option<Vec<VariableKey>> {
        self.0.as_ref()?.readable()
    }

    pub(in crate::http) fn may_see(&self, namespace: &str) -> bool {
        self.0.as_ref().is_none_or(|requester| requester.may_see(namespace))
    }

    /// Refuses a request for another namespace; one for all of them (`*`) gets what it may see.
    pub(in crate::http) fn check_namespace(&self, namespace: &str) -> ApiResult<()> {
        if namespace == "*" || self.may_see(namespace) { Ok(()) } else { Err(forbidden()) }
    }
}

pub(in crate::http) fn forbidden() -> ApiError {
    ApiError::Forbidden("Permission denied".to_owned())
}

impl<S: Send + Sync> FromRequestParts<S> for Scope {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Ok(Self(parts.extensions.get::<Requester>().cloned()))
    }
}
