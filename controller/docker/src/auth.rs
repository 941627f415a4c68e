//! Credentials for one pull: the task's `auth`, otherwise those that the driver's options name.
//!
//! In: the task's `auth`, the policy, an image. Out: credentials in the engine's form. They are read for each pull, so that rotated
//! ones are used, and never stored or logged.

use bollard::auth::DockerCredentials;
use herdlet_api_types::manifest::driver::DockerConfig;
use herdlet_images::{
    Reference,
    credentials::{AuthError, Credentials, Secret, Sources},
};

use crate::policy::Policy;

/// Finds credentials for an image; none if there are none.
///
/// # Errors
/// If a source is configured but can't be used.
pub(crate) async fn find(
    config: &DockerConfig,
    policy: &Policy,
    image: &Reference,
) -> Result<Option<DockerCredentials>, AuthError> {
    if let Some(auth) = config.auth.as_ref().map(|auth| &auth.0).filter(|auth| !auth.username.0.is_empty()) {
        let server = Some(auth.server_address.0.clone()).filter(|server| !server.is_empty());
        return Ok(Some(DockerCredentials {
            username: Some(auth.username.0.clone()),
            password: Some(auth.password.0.clone()),
            serveraddress: server.or_else(|| Some(image.registry.clone())),
            ..DockerCredentials::default()
        }));
    }
    let sources = Sources { file: policy.auth_config.as_deref(), helper: policy.auth_helper.as_deref() };
    Ok(sources.find(image).await?.map(|found| for_engine(found, image)))
}

fn for_engine(found: Credentials, image: &Reference) -> DockerCredentials {
    let Credentials { username, secret } = found;
    let (password, identitytoken) = match secret {
        Secret::Password(password) => (Some(password), None),
        Secret::IdentityToken(token) => (None, Some(token)),
    };
    DockerCredentials {
        username: Some(username),
        password,
        identitytoken,
        serveraddress: Some(image.registry.clone()),
        ..DockerCredentials::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_token_is_no_password() {
        let image = Reference::parse("quay.io/team/app").unwrap();
        let of = |secret| for_engine(Credentials { username: "u".to_owned(), secret }, &image);
        let password = of(Secret::Password("p".to_owned()));
        assert_eq!((password.password.as_deref(), password.identitytoken), (Some("p"), None));
        let token = of(Secret::IdentityToken("t".to_owned()));
        assert_eq!((token.password, token.identitytoken.as_deref()), (None, Some("t")));
        assert_eq!(token.serveraddress.as_deref(), Some("quay.io"));
    }
}
