//! Which token a node shows. What servers of each version want differs; this order satisfies all of them:
//!
//! ```text
//! registering for the first time   the identity that is kept from before, else an introduction, if there is one, else nothing
//! from then on, for everything     the identity that servers have signed (1.11 and later), else the secret
//! registering is denied            from the beginning
//! ```

use crate::wire::Secret;

/// What a node has to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens {
    secret: Secret,
    introduction: Secret,
    signed: Option<Secret>,
    is_registered: bool,
    /// Somebody wants another identity.
    is_wanted: bool,
}

impl Tokens {
    /// A node that has not registered since it was started. `introduction` may be empty; so may `signed`, the identity that servers have
    /// signed before.
    #[must_use]
    pub fn new(secret: Secret, introduction: Secret, signed: Secret) -> Self {
        let signed = Some(signed).filter(|signed| !signed.is_empty());
        Self { secret, introduction, is_registered: signed.is_some(), signed, is_wanted: false }
    }

    /// The identity that servers have signed; empty: none.
    #[must_use]
    pub fn signed(&self) -> Secret {
        self.signed.clone().unwrap_or_default()
    }

    /// For a registration.
    #[must_use]
    pub fn to_register(&self) -> Secret {
        if self.is_registered { self.to_call() } else { self.introduction.clone() }
    }

    /// For anything else.
    #[must_use]
    pub fn to_call(&self) -> Secret {
        self.signed.clone().unwrap_or_else(|| self.secret.clone())
    }

    /// With the next heartbeat servers are asked for another identity, and with each one until they have signed it.
    pub fn renew(&mut self) {
        self.is_wanted = true;
    }

    /// Whether they are to be asked.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// A registration or a heartbeat was answered, perhaps with a new identity.
    pub fn answered(&mut self, signed: Option<Secret>) {
        self.is_registered = true;
        if let Some(signed) = signed {
            self.signed = Some(signed);
            self.is_wanted = false;
        }
    }

    /// A registration was denied. Whether the next one shows something else.
    pub fn denied(&mut self) -> Next {
        let shown = self.to_register();
        self.is_registered = false;
        self.signed = None;
        if self.to_register() == shown { Next::Same } else { Next::Another }
    }
}

/// What the next registration shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The same as the last one.
    Same,
    /// Something else.
    Another,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_follow_what_servers_say() {
        let mut tokens = Tokens::new("secret".into(), Secret::default(), Secret::default());
        assert_eq!((tokens.to_register(), tokens.to_call()), ("".into(), "secret".into()));
        tokens.answered(None);
        assert_eq!(tokens.to_register(), "secret".into());
        tokens.answered(Some("signed".into()));
        assert_eq!((tokens.to_register(), tokens.to_call()), ("signed".into(), "signed".into()));
        tokens.renew();
        tokens.answered(None);
        assert_eq!((tokens.to_call(), tokens.is_wanted()), ("signed".into(), true));
        tokens.answered(Some("another".into()));
        assert_eq!((tokens.to_call(), tokens.is_wanted()), ("another".into(), false));
        assert_eq!((tokens.denied(), tokens.denied()), (Next::Another, Next::Same));
        assert_eq!((tokens.to_register(), tokens.to_call()), ("".into(), "secret".into()));
        let introduced = Tokens::new("secret".into(), "intro".into(), Secret::default());
        assert_eq!(introduced.to_register(), "intro".into());
        let mut back = Tokens::new("secret".into(), "intro".into(), "kept".into());
        assert_eq!(
            (back.to_register(), back.to_call(), back.signed()),
            ("kept".into(), "kept".into(), "kept".into())
        );
        assert_eq!(back.denied(), Next::Another);
        assert_eq!((back.to_register(), back.signed().is_empty()), ("intro".into(), true));
    }
}
