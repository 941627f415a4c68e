//! Settings of registries: mirrors, certificate authorities, hosts without TLS.
//!
//! In: settings by the names of registries, an image. Out: the hosts that may have the image, mirrors first. A mirror is a host of its own: it
//! gets the credentials that belong to its name, never those of the registry or of a task.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read as _},
    path::{Path, PathBuf},
};

use herdlet_base::{error::in_full, ownership, regular::open_regular};
use herdlet_runtime::off_thread;
use reqwest::Url;

use crate::{
    credentials::{Credentials, Sources},
    reference::Reference,
    registry::{Endpoint, RegistryError, Transport},
};

/// Directories in which other engines keep the authorities of a registry, by its name.
const CERTIFICATE_DIRS: [&str; 2] = ["/etc/docker/certs.d", "/etc/containers/certs.d"];
/// The file there.
const AUTHORITIES_NAME: &str = "ca.crt";
/// The largest file of authorities: the system's own has 200 KiB.
const AUTHORITIES_LEN_MAX: u64 = 1024 * 1024;

/// What is set for one registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistrySettings {
    /// Addresses of hosts that are asked before it.
    pub mirrors: Vec<String>,
    /// A file of authorities in PEM that are trusted besides the system's.
    pub ca: Option<PathBuf>,
    pub transport: Transport,
}

/// The settings of all registries.
#[derive(Debug, Clone, Default)]
pub struct Registries {
    known: BTreeMap<String, RegistrySettings>,
    /// In place of [`CERTIFICATE_DIRS`].
    certificate_dirs: Vec<PathBuf>,
}

impl Registries {
    /// Checks the settings. The error begins with the key.
    ///
    /// # Errors
    /// An address that can't be used.
    pub fn new(known: BTreeMap<String, RegistrySettings>) -> Result<Self, String> {
        for (name, settings) in &known {
            for (index, mirror) in settings.mirrors.iter().enumerate() {
                address(mirror).map_err(|why| format!("registries.{name}.mirrors[{index}]: {why}"))?;
            }
        }
        Ok(Self { known, certificate_dirs: CERTIFICATE_DIRS.map(PathBuf::from).into() })
    }

    /// The hosts that may have an image, in their order. `own`: the credentials for its registry; `sources`: where those of mirrors are.
    ///
    /// # Errors
    /// A name that is no host, or authorities that can't be read.
    pub async fn endpoints(
        &self,
        image: &Reference,
        own: Option<&Credentials>,
        sources: Sources<'_>,
    ) -> Result<Vec<Endpoint>, RegistryError> {
        let mut endpoints = Vec::new();
        let settings = self.known.get(&image.registry);
        for mirror in settings.into_iter().flat_map(|settings| &settings.mirrors) {
            let url = address(mirror).map_err(|_| RegistryError::Endpoint { url: mirror.clone() })?;
            let registry = host_of(&url);
            let at_mirror = Reference { registry: registry.clone(), ..image.clone() };
            // The registry itself remains if the mirror can't be used.
            let credentials = sources.find(&at_mirror).await.unwrap_or_else(|error| {
                tracing::warn!(mirror, %error, "the mirror is used without credentials");
                None
            });
            match self.authorities(&registry).await {
                Ok(authorities) => endpoints.push(Endpoint { url, credentials, authorities }),
                Err(error) => tracing::warn!(mirror, %error, "the mirror is not used"),
            }
        }
        let transport = settings.map_or(Transport::Secure, |settings| settings.transport);
        let authorities = self.authorities(&image.registry).await?;
        let own = Endpoint::of_registry(&image.registry, own, transport)?;
        endpoints.extend(own.into_iter().map(|host| Endpoint { authorities: authorities.clone(), ..host }));
        Ok(endpoints)
    }

    /// The authorities of a registry: those of its settings, otherwise those that it has for other engines.
    async fn authorities(&self, registry: &str) -> Result<Option<Vec<u8>>, RegistryError> {
        let failed = |path: &Path, why: String| RegistryError::Authorities {
            host: registry.to_owned(),
            path: path.to_owned(),
            why,
        };
        if let Some(path) = self.known.get(registry).and_then(|settings| settings.ca.as_deref()) {
            let found = read(path).await.map_err(|why| failed(path, why))?;
            return found.map(Some).ok_or_else(|| failed(path, "it does not exist".to_owned()));
        }
        // A name of dots alone would be another directory.
        let is_name = registry.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '[');
        for dir in self.certificate_dirs.iter().filter(|_| is_name) {
            let path = dir.join(registry).join(AUTHORITIES_NAME);
            if let Some(found) = read(&path).await.map_err(|why| failed(&path, why))? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// Reads a file of authorities; none if there is none. Who can change it decides which server gets the credentials.
async fn read(path: &Path) -> Result<Option<Vec<u8>>, String> {
    let path = path.to_owned();
    let read = off_thread(move || read_blocking(&path)).await;
    read.map_err(|error| error.to_string())?
}

fn read_blocking(path: &Path) -> Result<Option<Vec<u8>>, String> {
    ownership::check_if_there(path).map_err(|error| in_full(&error))?;
    let file = match open_regular(path) {
        Ok(Some(file)) => file,
        Ok(None) => return Err("it is not a regular file".to_owned()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(error.to_string()),
    };
    let mut bytes = Vec::new();
    let read = file.take(AUTHORITIES_LEN_MAX + 1).read_to_end(&mut bytes);
    let read = read.map_err(|error| error.to_string())? as u64;
    if read > AUTHORITIES_LEN_MAX {
        return Err(format!("it has more than {AUTHORITIES_LEN_MAX} bytes"));
    }
    Ok(Some(bytes))
}

/// The address of a mirror.
fn address(text: &str) -> Result<Url, String> {
    // A wrong address may have a password, too.
    let found = if text.contains('@') { String::new() } else { format!(", found {text:?}") };
    let expected = || format!("expected http:// or https:// and a host, with a port if needed{found}");
    let url = Url::parse(text).map_err(|_| expected())?;
    let is_plain = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    let has_user = !url.username().is_empty() || url.password().is_some();
    if !is_plain || has_user || !matches!(url.scheme(), "http" | "https") {
        // It may have a password.
        return Err(if has_user {
            "credentials belong into the file of `auth`".to_owned()
        } else {
            expected()
        });
    }
    Ok(url)
}

/// The name of a host, as images have it.
fn host_of(url: &Url) -> String {
    let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
    format!("{}{port}", url.host_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::Secret;

    fn settings(mirrors: &[&str]) -> RegistrySettings {
        let mirrors = mirrors.iter().map(|mirror| (*mirror).to_owned()).collect();
        RegistrySettings { mirrors, ..RegistrySettings::default() }
    }

    fn urls(endpoints: &[Endpoint]) -> Vec<&str> {
        endpoints.iter().map(|endpoint| endpoint.url.as_str()).collect()
    }

    #[tokio::test]
    async fn mirrors_come_first_and_get_no_credentials_of_the_registry() {
        let known = [("docker.io".to_owned(), settings(&["http://10.0.0.7:5000", "https://mirror.test"]))];
        let registries = Registries::new(known.into()).unwrap();
        let image = Reference::parse("redis:7").unwrap();
        let own = Credentials {
            username: "u".to_owned(),
            secret: Secret::Password("not-a-real-password".to_owned()),
        };
        let found = registries.endpoints(&image, Some(&own), Sources::default()).await.unwrap();
        assert_eq!(
            urls(&found),
            ["http://10.0.0.7:5000/", "https://mirror.test/", "https://registry-1.docker.io/"]
        );
        assert!(found[..2].iter().all(|mirror| mirror.credentials.is_none()));
        assert_eq!(found[2].credentials.as_ref(), Some(&own));
        let other = registries
            .endpoints(&Reference::parse("other.test/x:1").unwrap(), None, Sources::default())
            .await;
        assert_eq!(urls(&other.unwrap()), ["https://other.test/"]);
    }

    #[tokio::test]
    async fn a_registry_has_authorities_of_its_own_and_may_be_without_tls() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own.pem");
        std::fs::write(&own, "own").unwrap();
        std::fs::create_dir_all(dir.path().join("certs.d/other.test:5000")).unwrap();
        std::fs::write(dir.path().join("certs.d/other.test:5000/ca.crt"), "other").unwrap();
        let known =
            RegistrySettings { ca: Some(own.clone()), transport: Transport::Any, mirrors: Vec::new() };
        let mut registries = Registries::new([("own.test".to_owned(), known)].into()).unwrap();
        registries.certificate_dirs = vec![dir.path().join("none"), dir.path().join("certs.d")];
        let of = async |name: &str| {
            let image = Reference::parse(&format!("{name}/x:1")).unwrap();
            registries.endpoints(&image, None, Sources::default()).await
        };
        let found = of("own.test").await.unwrap();
        assert_eq!(urls(&found), ["https://own.test/", "http://own.test/"]);
        assert_eq!(found[0].authorities.as_deref(), Some(&b"own"[..]));
        let found = of("other.test:5000").await.unwrap();
        assert_eq!(found[0].authorities.as_deref(), Some(&b"other"[..]));
        assert!(of("plain.test").await.unwrap()[0].authorities.is_none());
        for (mode, bytes, why) in [(0o666, 3, "own.pem"), (0o600, 1 << 21, "more than 1048576 bytes")] {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::write(&own, vec![b'x'; bytes]).unwrap();
            std::fs::set_permissions(&own, std::fs::Permissions::from_mode(mode)).unwrap();
            let refused = of("own.test").await.unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
        std::fs::remove_file(&own).unwrap();
        let missing = of("own.test").await.unwrap_err().to_string();
        assert!(missing.contains("own.test") && missing.contains("own.pem"), "{missing}");
    }

    #[test]
    fn an_address_that_is_no_host_is_refused_by_its_key() {
        for wrong in [
            "mirror.test",
            "ftp://mirror.test",
            "https://mirror.test/v2",
            "https://u:p@mirror.test",
            "https://u:p@mirror.test:99999",
            "u:p@mirror.test",
        ] {
            let refused =
                Registries::new([("docker.io".to_owned(), settings(&["https://a.test", wrong]))].into());
            let why = refused.unwrap_err();
            assert!(why.starts_with("registries.docker.io.mirrors[1]: "), "{why}");
            assert!(!why.contains("u:p"), "{why}");
        }
    }
}
