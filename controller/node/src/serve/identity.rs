//! `NodeIdentity.*`: the node's identity signed by servers (1.11 and later). Returns the claims, never the token.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use herdlet_nomad::wire::Secret;
use herdlet_rpc::{error::Refusal, serve::answer};
use serde_json::{Map, Value, json};

use super::{Answered, NodeService, TokenOnly};
use crate::acl::Access;

impl NodeService {
    pub(super) async fn read_identity(&self, asked: TokenOnly) -> Answered {
        self.on_node(&asked.auth_token, Access::reads).await?;
        let signed = self.parts.servers.signed();
        if signed.is_empty() {
            return Err(Refusal::Error("node does not have a JWT identity token".to_owned()).into());
        }
        let claims = claims(&signed);
        let claims = claims.ok_or_else(|| Refusal::Error("failed to parsed signed token".to_owned()))?;
        Ok(answer(&json!({ "Claims": claims }))?)
    }

    pub(super) async fn renew_identity(&self, asked: TokenOnly) -> Answered {
        self.on_node(&asked.auth_token, Access::writes).await?;
        self.parts.servers.renew_identity();
        Ok(answer(&json!({}))?)
    }
}

/// The claims of a token (RFC 7519), without verification.
fn claims(token: &Secret) -> Option<Map<String, Value>> {
    let payload = token.reveal().split('.').nth(1)?;
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}
