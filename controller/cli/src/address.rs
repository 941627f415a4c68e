//! The address of the agent: `--addr`, `HERDLET_ADDR`, else the local socket (`HERDLET_SOCKET`, as for the agent).
//! `NOMAD_ADDR` is ignored, because it often points to production.

use std::{fmt, path::PathBuf, str::FromStr};

use clap::Args;
use herdlet_base::http_client::Credentials;
use herdlet_config::{Surroundings, default_socket, default_state_dir};
use zeroize::Zeroizing;

use super::{
    client::Client,
    failure::{Failure, USAGE},
};

/// Which agent to talk to.
#[derive(Debug, Clone, Default, Args)]
pub struct Connection {
    /// The agent: unix://PATH, http://HOST:PORT or https://HOST:PORT [also: HERDLET_ADDR; default: the local socket]
    #[arg(long, value_name = "ADDR", help_heading = "Connection")]
    pub addr: Option<Address>,
    /// File with the token for TCP; the variables HERDLET_TOKEN and NOMAD_TOKEN contain the token itself
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    pub token_file: Option<PathBuf>,
    /// CA certificates to trust instead of the system's, in PEM [also: HERDLET_CACERT, NOMAD_CACERT]
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    pub ca_cert: Option<PathBuf>,
    /// Client certificate, in PEM [also: HERDLET_CLIENT_CERT, NOMAD_CLIENT_CERT]
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    pub client_cert: Option<PathBuf>,
    /// Key of the client certificate, in PEM [also: HERDLET_CLIENT_KEY, NOMAD_CLIENT_KEY]
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    pub client_key: Option<PathBuf>,
}

/// The address of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    Unix(PathBuf),
    /// A URL without path: `http://host:port`.
    Url(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text has another form.
    #[error("expected unix://PATH, http://HOST:PORT or https://HOST:PORT")]
    Form,
    #[error("expected an absolute path after unix://")]
    RelativePath,
}

impl Address {
    /// Whether it is a socket of this machine.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Url(_) => false,
        }
    }

    /// The default socket of this user's agent; none if the environment does not determine it.
    fn local(surroundings: &Surroundings<'_>) -> Option<Self> {
        let named = (surroundings.variable)("HERDLET_SOCKET").filter(|path| !path.is_empty());
        let state_dir = default_state_dir(surroundings).unwrap_or_default();
        let socket = named.map_or_else(|| default_socket(surroundings, &state_dir), PathBuf::from);
        socket.is_absolute().then_some(Self::Unix(socket))
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix://") {
            let path = PathBuf::from(path);
            return if path.is_absolute() { Ok(Self::Unix(path)) } else { Err(AddressError::RelativePath) };
        }
        let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        let host = host.ok_or(AddressError::Form)?.trim_end_matches('/');
        if host.is_empty() || host.contains(['/', '?', '#', '@', ' ']) {
            return Err(AddressError::Form);
        }
        Ok(Self::Url(text.trim_end_matches('/').to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Url(url) => f.write_str(url),
        }
    }
}

impl Connection {
    /// A client for the agent.
    pub fn client(&self) -> Result<Client, Failure> {
        let address = self.address()?;
        if address.is_local() {
            return Ok(Client::new(address, self.token()?)?);
        }
        Ok(Client::trusting(address, self.token()?, &self.credentials()?)?)
    }

    /// Takes what is not set from flags before the command.
    pub fn inherit(&mut self, outer: Self) {
        self.addr = self.addr.take().or(outer.addr);
        self.token_file = self.token_file.take().or(outer.token_file);
        self.ca_cert = self.ca_cert.take().or(outer.ca_cert);
        self.client_cert = self.client_cert.take().or(outer.client_cert);
        self.client_key = self.client_key.take().or(outer.client_key);
    }

    /// The first connection flag that is set.
    pub fn first_flag(&self) -> Option<&'static str> {
        let files = [
            ("--token-file", &self.token_file),
            ("--ca-cert", &self.ca_cert),
            ("--client-cert", &self.client_cert),
            ("--client-key", &self.client_key),
        ];
        let file = files.into_iter().find_map(|(name, file)| file.as_ref().map(|_| name));
        self.addr.as_ref().map(|_| "--addr").or(file)
    }

    fn address(&self) -> Result<Address, Failure> {
        if let Some(address) = &self.addr {
            return Ok(address.clone());
        }
        let text = std::env::var("HERDLET_ADDR").unwrap_or_default();
        if text.is_empty() {
            let socket = std::env::var("HERDLET_SOCKET").unwrap_or_default();
            if !socket.is_empty() && !PathBuf::from(&socket).is_absolute() {
                let message = format!("HERDLET_SOCKET is {socket:?}: expected an absolute path");
                return Err(Failure::new(message).code(USAGE));
            }
            return Address::local(&Surroundings::of_process("")).ok_or_else(|| {
                Failure::new("cannot determine the agent's socket: HOME, XDG_STATE_HOME and XDG_RUNTIME_DIR are not set")
                    .code(USAGE)
                    .hint("name it: --addr unix:///PATH/herdlet.sock, or set HERDLET_ADDR")
            });
        }
        text.parse().map_err(|error| Failure::new(format!("HERDLET_ADDR is {text:?}: {error}")).code(USAGE))
    }

    /// Reads the certificate files, which the environment may also name.
    fn credentials(&self) -> Result<Credentials, Failure> {
        let named = |flag: &Option<PathBuf>, name: &str| {
            let variable =
                |prefix| std::env::var_os(format!("{prefix}_{name}")).filter(|path| !path.is_empty());
            flag.clone().or_else(|| variable("HERDLET").or_else(|| variable("NOMAD")).map(PathBuf::from))
        };
        let read = |path: PathBuf| {
            let bytes = std::fs::read(&path).map(Zeroizing::new);
            bytes.map_err(|error| Failure::new(format!("failed to read {}: {error}", path.display())))
        };
        let authorities = named(&self.ca_cert, "CACERT").map(|path| {
            let pem = read(path.clone())?;
            let has_some = reqwest::Certificate::from_pem_bundle(&pem).is_ok_and(|found| !found.is_empty());
            let none = || Failure::new(format!("there is no certificate in {} (PEM)", path.display()));
            if has_some { Ok(pem) } else { Err(none().code(USAGE)) }
        });
        let authorities = authorities.transpose()?;
        let certificate = named(&self.client_cert, "CLIENT_CERT").map(read).transpose()?;
        let key = named(&self.client_key, "CLIENT_KEY").map(read).transpose()?;
        let identity = match (certificate, key) {
            (Some(mut pem), Some(key)) => {
                pem.push(b'\n');
                pem.extend_from_slice(&key);
                Some(pem)
            }
            (None, None) => None,
            (Some(_), None) => {
                return Err(Failure::new("a client certificate needs its key: --client-key").code(USAGE));
            }
            (None, Some(_)) => {
                return Err(Failure::new("a client key needs its certificate: --client-cert").code(USAGE));
            }
        };
        Ok(Credentials { authorities: authorities.map(|pem| pem.to_vec()), identity })
    }

    /// Reads the token from the file, else from the environment. It is never an argument, because every user can read
    /// arguments.
    fn token(&self) -> Result<Option<Zeroizing<String>>, Failure> {
        let Some(path) = &self.token_file else {
            let token_in = |name| std::env::var(name).ok().filter(|token| !token.is_empty());
            return Ok(token_in("HERDLET_TOKEN").or_else(|| token_in("NOMAD_TOKEN")).map(Zeroizing::new));
        };
        let text = std::fs::read_to_string(path).map(Zeroizing::new).map_err(|error| {
            let why = if error.kind() == std::io::ErrorKind::IsADirectory {
                "it is a directory; name the file in it that holds the token".to_owned()
            } else {
                error.to_string()
            };
            Failure::new(format!("failed to read token file {}: {why}", path.display()))
        })?;
        Ok(Some(Zeroizing::new(text.trim().to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_socket_has_an_absolute_path_or_none() {
        let local = |variables: &'static [(&str, &str)], root| {
            let variable = move |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            };
            Address::local(&Surroundings { variable: &variable, root, host_name: "" })
                .map(|found| found.to_string())
        };
        assert_eq!(local(&[], true).unwrap(), "unix:///run/herdlet/herdlet.sock");
        assert_eq!(
            local(&[("XDG_RUNTIME_DIR", "/run/user/1")], false).unwrap(),
            "unix:///run/user/1/herdlet.sock"
        );
        assert_eq!(local(&[("HOME", "/h")], false).unwrap(), "unix:///h/.local/state/herdlet/herdlet.sock");
        assert_eq!(local(&[], false), None);
        assert_eq!(
            local(&[("HERDLET_SOCKET", "/s")], false).unwrap(),
            "unix:///s",
            "the socket of the agent"
        );
    }
}
