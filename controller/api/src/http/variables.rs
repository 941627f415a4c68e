//! Variables: `GET /v1/vars`, and GET, PUT and DELETE of `/v1/var/PATH`, with check-and-set and locks.
//!
//! In: requests as Nomad's clients send them. Out: variables in Nomad's JSON; 404 for none, 409 with the present variable for a
//! conflict. Each access has an audit line. No message of an error has a value of a variable.

use std::{borrow::Cow, sync::Arc};

use axum::{
    Json,
    extract::{FromRequest as _, FromRequestParts, Path, Request, State},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
};
use herdlet_api_types::variable::{
    DEFAULT_NAMESPACE, Variable, VariableItems, VariableKey, VariableLock, VariableMetadata,
};
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
    task_api::{Requester, Scope, forbidden},
};

/// The caller of a request, for the audit.
pub(super) struct Accessor(pub(super) Actor);

impl<S: Send + Sync> FromRequestParts<S> for Accessor {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        if let Some(requester) = parts.extensions.get::<Requester>() {
            return Ok(Self(Actor::client(requester.name())));
        }
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

/// What is known about a request that may be refused.
struct Asked<'s> {
    shared: &'s Shared,
    actor: &'s Actor,
    operation: &'static str,
    key: VariableKey,
}

impl Asked<'_> {
    /// Records a refusal before the store is reached.
    fn refuse(&self, error: ApiError) -> ApiError {
        let is_forbidden = matches!(error, ApiError::Forbidden(_));
        let result = if is_forbidden { "refused: not permitted" } else { "refused: invalid" };
        self.shared.variables.refused(self.actor, self.operation, &self.key, result);
        error
    }
}

impl Asked<'_> {
    /// Reads the body. A client that is gone before its end has an audit line too.
    async fn body(&self, request: Request) -> ApiResult<body::Json<Value>> {
        let waiting = Waiting { asked: self, is_ended: false };
        let sent = body::Json::from_request(request, &()).await;
        waiting.end();
        sent
    }
}

/// A request whose body has not arrived.
struct Waiting<'a> {
    asked: &'a Asked<'a>,
    is_ended: bool,
}

impl Waiting<'_> {
    fn end(mut self) {
        self.is_ended = true;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Asked { shared, actor, operation, key } = self.asked;
        if !self.is_ended {
            shared.variables.refused(actor, operation, key, "refused: caller gone");
        }
    }
}

/// Parameters of a request, or why they are refused.
type Given<T> = Result<Params<T>, ApiError>;

/// The namespace of a request; the default one if its parameters are not valid.
fn namespace_of(read: &Given<Read>) -> String {
    read.as_ref().map_or(DEFAULT_NAMESPACE, |Params(read)| read.namespace()).to_owned()
}

pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    read: Given<Read>,
    (Accessor(actor), scope): (Accessor, Scope),
) -> ApiResult<Response> {
    let key = VariableKey { namespace: namespace_of(&read), path: String::new() };
    let asked = Asked { shared: &shared, actor: &actor, operation: "list", key };
    let Params(read) = read.map_err(|error| asked.refuse(error))?;
    scope.check_namespace(read.namespace()).map_err(|error| asked.refuse(error))?;
    shared.variables.listed(&actor, read.namespace(), &read.prefix);
    let show = |_: &Shared, one: &VariableMetadata| serde_json::to_value(one).unwrap_or_default();
    // A task may read a few of ten thousand: only these are visited.
    let readable = scope.readable();
    let find = |shared: &Shared| {
        let store = shared.variables.store();
        Ok(readable.as_ref().map_or_else(|| store.list(), |keys| store.list_of(keys)))
    };
    shared.list(&read, find, show).await
}

pub(super) async fn read(
    State(shared): State<Arc<Shared>>,
    Path(path): Path<String>,
    read: Given<Read>,
    (Accessor(actor), scope): (Accessor, Scope),
) -> VariableResult {
    let key = VariableKey { namespace: namespace_of(&read), path };
    let asked = Asked { shared: &shared, actor: &actor, operation: "read", key: key.clone() };
    let Params(read) = read.map_err(|error| asked.refuse(error))?;
    if !scope.may_read(&key.namespace, &key.path) {
        return Err(asked.refuse(forbidden()).into());
    }
    shared.await_variable(&read, &key).await.map_err(|error| asked.refuse(error))?;
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
        let change = async {
            while version() == first {
                store.changed(index).await;
                index = store.index();
            }
        };
        self.wait(read, change).await
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

/// A change that a request asks for.
enum Write {
    Put(VariableItems, Check, VariableLock),
    Acquire(Option<VariableItems>, VariableLock),
    Renew(VariableLock),
    Release(VariableLock),
}

pub(super) async fn write(
    State(shared): State<Arc<Shared>>,
    Path(path): Path<String>,
    (read, operation): (Given<Read>, Given<Operation>),
    Accessor(actor): Accessor,
    request: Request,
) -> VariableResult {
    let key = VariableKey { namespace: namespace_of(&read), path };
    let mut asked = Asked { shared: &shared, actor: &actor, operation: "write", key };
    let Params(read) = read.map_err(|error| asked.refuse(error))?;
    let Params(operation) = operation.map_err(|error| asked.refuse(error))?;
    let body::Json(sent) = asked.body(request).await.map_err(|error| asked.refuse(error))?;
    let Variable { metadata, items } = variable_of(sent).map_err(|error| asked.refuse(error))?;
    if read.namespace.as_deref().is_none_or(str::is_empty) && !metadata.namespace.is_empty() {
        asked.key.namespace = metadata.namespace;
    }
    let lock = metadata.lock.unwrap_or_default();
    let write = operation.write(items, lock).map_err(|error| asked.refuse(error))?;
    let (variables, key) = (&shared.variables, asked.key);
    let written = match write {
        Write::Put(items, check, lock) => variables.put(&actor, key, items, (check, lock.id)).await?,
        Write::Acquire(items, lock) => variables.acquire(&actor, key, (items, lock)).await?,
        Write::Renew(lock) => {
            let metadata = variables.renew(&actor, key, lock.id).await?;
            return Ok(answered(&read, metadata.modify_index, metadata)?);
        }
        Write::Release(lock) => {
            let metadata = variables.release(&actor, key, lock.id).await?;
            return Ok(answered(&read, metadata.modify_index, metadata)?);
        }
    };
    Ok(answered(&read, written.metadata.modify_index, written)?)
}

/// Reads a body. The parser's own messages could have a value.
fn variable_of(sent: Value) -> ApiResult<Variable> {
    let items = sent.get("Items").and_then(Value::as_object).into_iter().flatten();
    if let Some((name, _)) = items.into_iter().find(|(_, value)| !value.is_string()) {
        let message = format!("the body is not a variable: Items[{name:?}] is not a string");
        return Err(ApiError::bad(message));
    }
    let message = "the body is not a variable: expected an object whose Items have strings as values";
    serde_json::from_value(sent).map_err(|_| ApiError::bad(message))
}

impl Operation {
    fn write(self, items: Option<VariableItems>, lock: VariableLock) -> ApiResult<Write> {
        let check = self.check()?;
        let Self { lock_acquire, lock_renew, lock_release, .. } = self;
        let is_of_lock = lock_acquire.is_some() || lock_renew.is_some() || lock_release.is_some();
        if check != Check::Nothing && is_of_lock {
            return Err(ApiError::bad("cas can't be combined with an operation on a lock"));
        }
        let items = items.unwrap_or_default();
        match (lock_acquire, lock_renew, lock_release) {
            (None, None, None) => Ok(Write::Put(items, check, lock)),
            (Some(_), None, None) => {
                Ok(Write::Acquire(Some(items).filter(|items| !items.0.is_empty()), lock))
            }
            (None, Some(_), None) => Ok(Write::Renew(lock)),
            (None, None, Some(_)) if items.0.is_empty() => Ok(Write::Release(lock)),
            (None, None, Some(_)) => Err(ApiError::bad("a release of a lock changes no items: send none")),
            (_, _, _) => Err(ApiError::bad("a request has at most one operation on a lock")),
        }
    }
}

pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    Path(path): Path<String>,
    (read, operation): (Given<Read>, Given<Operation>),
    Accessor(actor): Accessor,
) -> VariableResult {
    let key = VariableKey { namespace: namespace_of(&read), path };
    let asked = Asked { shared: &shared, actor: &actor, operation: "remove", key: key.clone() };
    read.map_err(|error| asked.refuse(error))?;
    let Params(operation) = operation.map_err(|error| asked.refuse(error))?;
    let check = operation.check().map_err(|error| asked.refuse(error))?;
    let index = shared.variables.delete(&actor, key, check).await?;
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
