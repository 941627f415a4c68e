//! Variables: `GET /v1/vars`, and GET, PUT and DELETE of `/v1/var/PATH`, with check-and-set and locks.
//!
//! In: requests as Nomad's clients send them. Out: variables in Nomad's JSON; 404 for none, 409 with the present variable for a
//! conflict. Each access has an audit line. No message of an error has a value of a variable.

use std::{borrow::Cow, sync::Arc};

use axum::{
    Json,
    extract::{FromRequestParts, Path, State},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use herdlet_api_types::variable::{DEFAULT_NAMESPACE, Variable, VariableKey, VariableMetadata};
use herdlet_variables::{Actor, Check, KeyError, VariableError};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Shared,
    admission::Caller,
    body,
    error::{ApiError, ApiResult},
    list::Listed,
    query::{INDEX, Params, Read, Source, answered},
};

/// The caller of a request, for the audit.
pub(super) struct Accessor(pub(super) Actor);

impl<S: Send + Sync> FromRequestParts<S> for Accessor {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        // Only a router without listener, in tests, has no caller.
        let caller = parts.extensions.get::<Caller>();
        Ok(Self(caller.map_or_else(Actor::agent, Actor::client)))
    }
}

impl Listed for VariableMetadata {
    const SOURCE: Source = Source::Variables;

    fn namespace(&self) -> Option<&str> {
        Some(&self.namespace)
    }

    fn id(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.path)
    }

    fn create_index(&self) -> u64 {
        self.create_index
    }
}

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(read): Params<Read>,
    Accessor(actor): Accessor,
) -> ApiResult<Response> {
    shared.variables.listed(&actor, read.namespace(), &read.prefix);
    let show = |_: &Shared, one: &VariableMetadata| serde_json::to_value(one).unwrap_or_default();
    let find = |shared: &Shared| Ok(shared.variables.store().list());
    shared.list(&read, find, show).await
}

pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(path): Path<String>,
    Params(read): Params<Read>,
    Accessor(actor): Accessor,
) -> VariableResult {
    let key = VariableKey { namespace: read.namespace().to_owned(), path };
    shared.await_variable(&read, &key).await?;
    let index = shared.index(Source::Variables);
    match shared.variables.read(&actor, key).await? {
        Some(variable) => Ok(answered(&read, variable.metadata.modify_index, variable)?),
        // Clients wait for it to be created, from this index on.
        None => Ok(([(INDEX, index.to_string())], absent()).into_response()),
    }
}

impl Shared {
    /// Waits as a blocking query requests, until this variable is created, changed or removed.
    async fn await_variable(&self, read: &Read, key: &VariableKey) -> ApiResult<()> {
        let store = self.variables.store();
        let version = || store.metadata(key).map(|metadata| metadata.modify_index);
        let (first, mut index) = (version(), store.index());
        let is_new = first.map_or(index > read.index, |version| version > read.index);
        // An index that was not reached yet is from another state directory.
        if read.index == 0 || read.index > index || is_new {
            return Ok(());
        }
        let news = async {
            while version() == first {
                store.changed(index).await;
                index = store.index();
            }
        };
        self.wait(read, news).await
    }
}

/// What a change is to do, and under which condition. The last three have no value.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct Operation {
    cas: String,
    lock_acquire: Option<String>,
    lock_renew: Option<String>,
    lock_release: Option<String>,
}

impl Operation {
    fn check(&self) -> ApiResult<Check> {
        if self.cas.is_empty() {
            return Ok(Check::Nothing);
        }
        let index = self.cas.parse().map(Check::Index);
        index.map_err(|_| ApiError::bad(format!("cas: {:?} is not an index", self.cas)))
    }
}

pub(super) async fn write(
    State(shared): State<Arc<Shared>>,
    Path(path): Path<String>,
    (Params(read), Params(operation)): (Params<Read>, Params<Operation>),
    Accessor(actor): Accessor,
    body::Json(sent): body::Json<Value>,
) -> VariableResult {
    let variables = &shared.variables;
    let asked = |namespace: &str| VariableKey { namespace: namespace.to_owned(), path: path.clone() };
    // The parser's own message could have a value.
    let Ok(Variable { metadata, items }) = serde_json::from_value::<Variable>(sent) else {
        variables.refused(&actor, "write", &asked(read.namespace()), "refused: invalid");
        let message = "the body is not a variable: expected an object whose Items have strings as values";
        return Err(ApiError::bad(message).into());
    };
    let in_body = Some(metadata.namespace.as_str()).filter(|namespace| !namespace.is_empty());
    let in_query = read.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    let key = asked(in_query.or(in_body).unwrap_or(DEFAULT_NAMESPACE));
    let check = operation.check()?;
    let lock = metadata.lock.unwrap_or_default();
    let Operation { lock_acquire, lock_renew, lock_release, .. } = operation;
    if check != Check::Nothing && [&lock_acquire, &lock_renew, &lock_release].iter().any(|set| set.is_some())
    {
        return Err(ApiError::bad("cas can't be combined with an operation on a lock").into());
    }
    let written = match (lock_acquire, lock_renew, lock_release) {
        (None, None, None) => variables.put(&actor, key, items.unwrap_or_default(), (check, lock.id)).await?,
        (Some(_), None, None) => {
            let items = items.filter(|items| !items.0.is_empty());
            variables.acquire(&actor, key, (items, lock)).await?
        }
        (None, Some(_), None) => {
            let metadata = variables.renew(&actor, key, lock.id).await?;
            return Ok(answered(&read, metadata.modify_index, metadata)?);
        }
        (None, None, Some(_)) => {
            if items.is_some_and(|items| !items.0.is_empty()) {
                return Err(ApiError::bad("a release of a lock changes no items: send none").into());
            }
            let metadata = variables.release(&actor, key, lock.id).await?;
            return Ok(answered(&read, metadata.modify_index, metadata)?);
        }
        (_, _, _) => return Err(ApiError::bad("a request has at most one operation on a lock").into()),
    };
    Ok(answered(&read, written.metadata.modify_index, written)?)
}

pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    Path(path): Path<String>,
    (Params(read), Params(operation)): (Params<Read>, Params<Operation>),
    Accessor(actor): Accessor,
) -> VariableResult {
    let key = VariableKey { namespace: read.namespace().to_owned(), path };
    let index = shared.variables.delete(&actor, key, operation.check()?).await?;
    Ok((StatusCode::NO_CONTENT, [(INDEX, index.to_string())]).into_response())
}

type VariableResult = Result<Response, VariableRefusal>;

/// An error, or the present variable.
pub(super) enum VariableRefusal {
    Error(ApiError),
    Conflict(Box<Variable>),
}

fn absent() -> ApiError {
    ApiError::NotFound("variable not found".to_owned())
}

impl From<ApiError> for VariableRefusal {
    fn from(error: ApiError) -> Self {
        Self::Error(error)
    }
}

impl From<VariableError> for VariableRefusal {
    fn from(error: VariableError) -> Self {
        let message = error.to_string();
        Self::Error(match error {
            VariableError::Conflict { present, .. } => return Self::Conflict(present),
            VariableError::Invalid(why) => ApiError::BadRequest(why),
            VariableError::NotFound => absent(),
            VariableError::KeyRequest(KeyError::NoSuchKey { .. }) => ApiError::NotFound(message),
            VariableError::KeyRequest(_) => ApiError::Conflict(message),
            VariableError::Key(_) | VariableError::Down => ApiError::Unavailable(message),
            VariableError::Write { .. } => ApiError::Open(message),
            VariableError::Damaged { .. } | VariableError::Newer { .. } | VariableError::Read { .. } => {
                ApiError::Failed(format!("access a variable: {message}"))
            }
        })
    }
}

impl IntoResponse for VariableRefusal {
    fn into_response(self) -> Response {
        match self {
            Self::Error(error) => error.into_response(),
            Self::Conflict(present) => {
                let index = present.metadata.modify_index.to_string();
                (StatusCode::CONFLICT, [(INDEX, index)], Json(present)).into_response()
            }
        }
    }
}
