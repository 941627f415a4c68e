//! Requests about variables and their keys.

use herdlet_api_types::variable::{Variable, VariableKey, VariableMetadata, VariableUser};
use herdlet_base::paths::encode;
use reqwest::{Method, RequestBuilder};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{CHANGE_WAIT, CHANGE_WAIT_MAX, Client, ClientError, Result};

/// Why a change of a variable was not made, or is not known to be made.
#[derive(Debug)]
pub enum VariableRefusal {
    /// The variable is not as expected, or locked: its present metadata.
    Conflict(Box<VariableMetadata>),
    Failed(ClientError),
}

/// An operation on a lock, as the query parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockOperation {
    Acquire,
    Renew,
    Release,
}

impl LockOperation {
    fn parameter(self) -> &'static str {
        match self {
            Self::Acquire => "lock-acquire",
            Self::Renew => "lock-renew",
            Self::Release => "lock-release",
        }
    }
}

/// A key that encrypts variables, without the key itself.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct VariableKeyInfo {
    #[serde(rename = "KeyID")]
    pub id: String,
    pub state: String,
    /// Nanoseconds since 1970; 0 if unknown.
    pub create_time: i64,
    #[serde(default)]
    pub variables: u64,
    #[serde(default)]
    pub algorithm: String,
    /// `variables` or `identities`; empty on a node, whose servers use each key for both.
    #[serde(default, rename = "Use")]
    pub purpose: String,
    /// Nanoseconds since 1970 from which it is used; 0 if it is used already.
    #[serde(default)]
    pub publish_time: i64,
}

/// Whether a removal heeds the tokens that a key has signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRemoval {
    /// It is refused while one may be valid.
    Checked,
    /// They become invalid.
    Forced,
}

#[derive(Deserialize)]
struct Rotated {
    #[serde(rename = "Key")]
    key: VariableKeyInfo,
}

const KEYS: &str = "/v1/operator/keyring/keys";
const ROTATE: &str = "/v1/operator/keyring/rotate";

/// What a key is for.
const VARIABLES: &str = "variables";
const IDENTITIES: &str = "identities";

impl Client {
    /// A variable with its items; none if there is none.
    pub async fn variable(&self, key: &VariableKey) -> Result<Option<Variable>> {
        match self.ask(self.of_variable(Method::GET, key)).await {
            Ok(found) => Ok(Some(found)),
            Err(ClientError::Status { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The tasks whose templates use a variable.
    pub async fn variable_users(&self, key: &VariableKey) -> Result<Vec<VariableUser>> {
        let request = self.to(Method::GET, "/v1/herdlet/variable/users");
        self.ask(request.query(&[("path", &key.path), ("namespace", &key.namespace)])).await
    }

    /// Waits until a variable changes after this index, for some seconds at most.
    pub async fn await_variable(&self, key: &VariableKey, index: u64) -> Result<()> {
        let request = self.of_variable(Method::GET, key).query(&[("index", index)]);
        let request = request.query(&[("wait", CHANGE_WAIT)]).build().map_err(ClientError::Setup)?;
        match self.execute_within(request, CHANGE_WAIT_MAX).await {
            Ok(_) | Err(ClientError::Status { status: 404, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The variables of a namespace (`*`: of all) whose paths begin with `prefix`.
    pub async fn variables(
        &self,
        namespace: &str,
        prefix: &str,
        filter: &str,
    ) -> Result<Vec<VariableMetadata>> {
        let query = [("namespace", namespace), ("prefix", prefix), ("filter", filter)];
        self.ask(self.to(Method::GET, "/v1/vars").query(&query)).await
    }

    /// Creates or changes a variable; with `check` only if it has this index, or with 0 only if there is none.
    pub async fn put_variable(
        &self,
        variable: &Variable,
        check: Option<u64>,
    ) -> std::result::Result<Variable, VariableRefusal> {
        let request = self.of_variable(Method::PUT, &variable.metadata.key());
        self.change_variable(checked(request.json(variable), check)).await
    }

    /// Removes a variable.
    pub async fn purge_variable(
        &self,
        key: &VariableKey,
        check: Option<u64>,
    ) -> std::result::Result<(), VariableRefusal> {
        let answer = self.send(checked(self.of_variable(Method::DELETE, key), check)).await;
        answer.map(drop).map_err(refusal)
    }

    /// Changes a lock. Of the variable, the key and the lock are sent, and to acquire it the items.
    pub async fn lock_variable(
        &self,
        variable: &Variable,
        operation: LockOperation,
    ) -> std::result::Result<Variable, VariableRefusal> {
        let request = self.of_variable(Method::PUT, &variable.metadata.key());
        self.change_variable(request.query(&[(operation.parameter(), "")]).json(variable)).await
    }

    /// The keys that encrypt variables.
    pub async fn variable_keys(&self) -> Result<Vec<VariableKeyInfo>> {
        let keys: Vec<VariableKeyInfo> = self.ask(self.to(Method::GET, KEYS)).await?;
        Ok(keys.into_iter().filter(|key| key.purpose != IDENTITIES).collect())
    }

    /// The keys that sign identities.
    pub async fn identity_keys(&self) -> Result<Vec<VariableKeyInfo>> {
        let keys: Vec<VariableKeyInfo> = self.ask(self.to(Method::GET, KEYS)).await?;
        Ok(keys.into_iter().filter(|key| key.purpose != VARIABLES).collect())
    }

    /// Creates a key that signs identities from a time on, in nanoseconds since 1970; with 0 at once.
    pub async fn rotate_identity_key(&self, algorithm: &str, publish_time: i64) -> Result<VariableKeyInfo> {
        let query = [
            ("use", IDENTITIES),
            ("signing_algorithm", algorithm),
            ("publish_time", &publish_time.to_string()),
        ];
        let rotated: Rotated = self.ask(self.to(Method::PUT, ROTATE).query(&query)).await?;
        Ok(rotated.key)
    }

    /// Removes a key that does not sign.
    pub async fn remove_identity_key(&self, id: &str, removal: KeyRemoval) -> Result<()> {
        let path = format!("/v1/operator/keyring/key/{}", encode(id));
        let request = self.to(Method::DELETE, &path);
        let request = match removal {
            KeyRemoval::Checked => request,
            KeyRemoval::Forced => request.query(&[("force", "true")]),
        };
        let _: Value = self.ask(request.json(&json!({}))).await?;
        Ok(())
    }

    /// Creates a key, with which all variables are encrypted again.
    pub async fn rotate_variable_key(&self) -> Result<VariableKeyInfo> {
        let query = [("full", "true"), ("use", VARIABLES)];
        let rotated: Rotated = self.ask(self.to(Method::PUT, ROTATE).query(&query)).await?;
        Ok(rotated.key)
    }

    /// Removes a key that is not in use.
    pub async fn remove_variable_key(&self, id: &str) -> Result<()> {
        let path = format!("/v1/operator/keyring/key/{}", encode(id));
        let _: Value = self.ask(self.to(Method::DELETE, &path).json(&json!({}))).await?;
        Ok(())
    }

    fn of_variable(&self, method: Method, key: &VariableKey) -> RequestBuilder {
        let path = format!("/v1/var/{}", encode(&key.path));
        self.to(method, &path).query(&[("namespace", &key.namespace)])
    }

    async fn change_variable(
        &self,
        request: RequestBuilder,
    ) -> std::result::Result<Variable, VariableRefusal> {
        self.ask(request).await.map_err(refusal)
    }
}

fn checked(request: RequestBuilder, check: Option<u64>) -> RequestBuilder {
    match check {
        Some(index) => request.query(&[("cas", index)]),
        None => request,
    }
}

/// The items of a conflicting variable are dropped, so that no message can show them.
fn refusal(error: ClientError) -> VariableRefusal {
    let ClientError::Status { status: 409, message } = error else { return VariableRefusal::Failed(error) };
    match serde_json::from_str::<Variable>(&message) {
        Ok(present) => VariableRefusal::Conflict(Box::new(present.metadata)),
        Err(_) => {
            let message = "the variable is not as expected".to_owned();
            VariableRefusal::Failed(ClientError::Status { status: 409, message })
        }
    }
}
