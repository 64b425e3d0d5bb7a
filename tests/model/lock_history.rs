//! What happened to a lock over the whole run, which no process in it can know: the order of the grants, the tokens
//! that were returned to apps, and what the fenced resource accepted.

use leasehold::protocol::ids::GrantId;
use leasehold::protocol::lock::Lock;
use leasehold::protocol::token::Token;

/// The history of one lock. A restored backup does not roll it back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct LockHistory {
    /// Every grant with every base it had, in the order of their writes.
    pub(crate) issued: Vec<(GrantId, Token)>,
    /// Every token that was returned to an app, with the index of its grant in `issued`.
    pub(crate) given: Vec<Given>,
    /// What the fenced resource remembers, and the grant behind it.
    pub(crate) fence: Option<Given>,
    /// A person forced a release, deleted the lock or restored a backup: exclusion is off.
    pub(crate) overridden: bool,
}

/// A token that was returned to an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Given {
    pub(crate) grant: usize,
    pub(crate) token: Token,
}

/// Something that must never happen, once it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Violation {
    /// A token was returned twice, or a later grant got a smaller one.
    TokensDoNotRise,
    /// The fenced resource took a write of an older grant after one of a newer grant.
    OldWriteTaken,
    /// A write of a lock took its token back, or gave a new grant no larger one.
    UnsoundWrite,
    /// A lease was returned whose deadline had passed.
    ToldTooLate,
}

impl LockHistory {
    /// A write of the lock was applied.
    pub(crate) fn written(&mut self, lock: &Lock) {
        if let Some(grant) = &lock.grant {
            let issued = (grant.id.clone(), lock.token);
            if !self.issued.contains(&issued) {
                self.issued.push(issued);
            }
        }
    }

    /// A token of the grant with this base is returned to an app.
    pub(crate) fn give(
        &mut self,
        grant: &GrantId,
        base: Token,
        token: Token,
    ) -> Result<(), Violation> {
        let place = self
            .issued
            .iter()
            .position(|(id, issued)| id == grant && *issued == base)
            .expect("a grant that is served must have been written");
        let new = Given {
            grant: place,
            token,
        };
        let rises = self.given.iter().all(|old| {
            old.token != new.token
                && (old.grant.cmp(&new.grant)).then(old.token.cmp(&new.token))
                    == old.token.cmp(&new.token)
        });
        self.given.push(new);
        if rises {
            Ok(())
        } else {
            Err(Violation::TokensDoNotRise)
        }
    }

    /// A write with this token reaches the fenced resource. It accepts what is not older than the newest accepted
    /// one, and can know no more.
    pub(crate) fn fenced_write(&mut self, write: Given) -> Result<(), Violation> {
        let Some(newest) = self.fence else {
            self.fence = Some(write);
            return Ok(());
        };
        if write.token < newest.token {
            return Ok(());
        }
        self.fence = Some(write);
        if write.grant < newest.grant {
            return Err(Violation::OldWriteTaken);
        }
        Ok(())
    }
}
