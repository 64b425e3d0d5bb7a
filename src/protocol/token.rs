//! Fencing tokens: numbers that only increase for a resource.
//!
//! A token is derived from the resourceVersion that the granting compare-and-swap consumes: such
//! a CAS succeeds at most once and revisions only rise. So tokens are unique and rising, also after
//! the lock object is deleted and recreated. (Kleppmann, "How to do distributed locking",
//! 2016; Burrows, "The Chubby lock service", OSDI 2006, calls them sequencers.)
//!
//! `base = max(floor + scale(max(R, L)), previous base + 1000)`: R is the resourceVersion that the
//! grant consumes, L the highest one that the agent has seen. The thousand numbers from the base on
//! belong to the grant.
//!
//! The module trusts that the store's revisions never decrease, and does not enforce it. A restored
//! backup breaks that unless its revision was bumped (`etcdutl snapshot restore
//! --bump-revision`); [`Mint::must_raise`] and [`Seen::list_answered`] detect it.

use std::fmt;

/// A resourceVersion as the integer that Kubernetes makes of it (KEP-5504: resource versions are
/// comparable).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// A fencing token. Zero is the token of a lock that was never held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

/// The number of leases that one grant can serve before it needs a new base: tokens `base` to
/// `base + 999`.
pub const LEASES_PER_GRANT: u64 = 1000;

/// The largest base: a JSON number (an IEEE double) must represent every token exactly.
pub const MAX_BASE: u64 = (1 << 53) - LEASES_PER_GRANT;

/// Below this a revision counts writes (etcd); 2^43 writes are 280 years at 1,000 per second.
const COUNTED_BELOW: u64 = 1 << 43;
/// Above this a revision counts nanoseconds (1760342223637167018 is a real one of GKE).
const NANOSECONDS_ABOVE: u64 = 1 << 53;

/// How far the revision of a write may be above the one that its token was computed from. A larger
/// gap counts as a restored backup with a bumped revision (the runbook bumps by 10^9).
const BUMP_SUSPECTED_ABOVE: u64 = 100_000_000;

/// No larger token exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenExhausted {
    /// The base that would have been needed.
    pub needed: u128,
    /// Whether the reason is the lock's last token, and not the store's revision.
    pub by_last_token: bool,
}

impl fmt::Display for TokenExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the next fencing token would be {}, above the largest base {MAX_BASE}; ",
            self.needed
        )?;
        if self.by_last_token {
            return f.write_str(
                "the lock's last token is that large, and the next one must be larger: use another \
                 resource, or delete the lock object if no guarded system has seen that token",
            );
        }
        f.write_str("check the token floor and the store's resourceVersions")
    }
}

impl std::error::Error for TokenExhausted {}

impl Token {
    /// The token of a lock that was never held.
    pub const NONE: Self = Self(0);

    /// Creates a token that was read from an object or a request.
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Returns the token as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the token of the `n`-th lease in the grant whose base this is; `None` if the grant
    /// has no token for it.
    #[must_use]
    pub fn nth(self, n: u16) -> Option<Self> {
        (u64::from(n) < LEASES_PER_GRANT).then(|| Self(self.0.saturating_add(u64::from(n))))
    }

    /// Returns whether `other` is one of the tokens of the grant whose base this is.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        other.0 >= self.0 && other.0 - self.0 < LEASES_PER_GRANT
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Revision {
    /// Returns the first token that belongs to this revision, before the floor is added.
    ///
    /// If revisions count nanoseconds, two writes of one object are assumed to be at least a
    /// millisecond apart: no replicated store is faster. So each write has a thousand tokens there,
    /// too.
    #[must_use]
    pub const fn scale(self) -> u128 {
        let revision = self.0;
        if revision < COUNTED_BELOW {
            revision as u128 * LEASES_PER_GRANT as u128
        } else if revision <= NANOSECONDS_ABOVE {
            revision as u128
        } else {
            (revision / LEASES_PER_GRANT) as u128
        }
    }

    /// Returns whether a write that was decided on this revision was applied so far above it that
    /// the store must have been restored with a bumped revision in between.
    #[must_use]
    pub const fn leapt_to(self, written: Self) -> bool {
        written.counts_writes() && written.0 > self.0.saturating_add(BUMP_SUSPECTED_ABOVE)
    }

    const fn counts_writes(self) -> bool {
        self.0 < COUNTED_BELOW
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The highest revision of locks that a session has seen, in any response, event or bookmark.
///
/// It begins with one consistent LIST. Otherwise a lock object that a restored backup contains with
/// its old resourceVersion would repeat tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen(Revision);

/// A consistent LIST returned a revision lower than one seen before: the store lost writes, as
/// after the restore of a backup without a bump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoreWentBack {
    /// The highest revision seen before.
    pub seen: Revision,
    /// The revision of the LIST.
    pub listed: Revision,
}

impl fmt::Display for StoreWentBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the API server lists revision {} after revision {} was observed: its store was restored \
             without raising the revision, so fencing tokens would repeat; restore it again with \
             `etcdutl snapshot restore --bump-revision 1000000000 --mark-compacted`",
            self.listed, self.seen
        )
    }
}

impl std::error::Error for StoreWentBack {}

impl Seen {
    /// Starts with the revision of a consistent LIST.
    #[must_use]
    pub const fn from_list(listed: Revision) -> Self {
        Self(listed)
    }

    /// Returns the highest revision seen.
    #[must_use]
    pub const fn highest(self) -> Revision {
        self.0
    }

    /// Records a revision of a response or an event; an older one changes nothing.
    pub fn note(&mut self, revision: Revision) {
        self.0 = self.0.max(revision);
    }

    /// Records another consistent LIST.
    ///
    /// # Errors
    /// [`StoreWentBack`] if the list is older than what was seen; nothing may be granted then.
    pub fn list_answered(&mut self, listed: Revision) -> Result<(), StoreWentBack> {
        if listed < self.0 {
            return Err(StoreWentBack {
                seen: self.0,
                listed,
            });
        }
        self.0 = listed;
        Ok(())
    }
}

/// The values from which a session computes tokens, besides the lock itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mint {
    /// The highest revision of locks that the session saw.
    pub seen: Seen,
    /// Added to every base: a setting of the whole installation, normally 0, that is never lowered.
    /// A cluster that takes over the resources of another one sets it to the largest token granted
    /// there.
    pub floor: u64,
}

impl Mint {
    /// Returns the base for a grant whose CAS consumes `at`, for a lock whose last base was
    /// `previous`.
    ///
    /// The floor is an addend and not a lower bound: with a lower bound every lock that is deleted
    /// and recreated below the floor would get the same token again.
    ///
    /// # Errors
    /// [`TokenExhausted`] if a JSON number cannot represent the base exactly.
    pub fn base(&self, at: Revision, previous: Token) -> Result<Token, TokenExhausted> {
        let from_revision = u128::from(self.floor) + at.max(self.seen.highest()).scale();
        let from_previous = match previous {
            Token::NONE => 0,
            Token(base) => u128::from(base) + u128::from(LEASES_PER_GRANT),
        };
        let needed = from_revision.max(from_previous);
        match u64::try_from(needed) {
            Ok(base) if base <= MAX_BASE => Ok(Token(base)),
            _ => Err(TokenExhausted {
                needed,
                by_last_token: from_previous > from_revision,
            }),
        }
    }

    /// Returns whether a grant that was written at `written` with the base `token` must get a
    /// larger token before a caller receives it.
    ///
    /// A bumped restore raises the store's revision and leaves each object at its old one. Its sign
    /// is a write more than 10^8 above the revision that its token was computed from: tokens that
    /// the backup lacks may lie in between. An agent checks this for each grant that it writes. The
    /// receiver of a hand-over checks it for the version at which it became the holder.
    #[must_use]
    pub fn must_raise(&self, token: Token, written: Revision) -> bool {
        let gap = u128::from(BUMP_SUSPECTED_ABOVE) * u128::from(LEASES_PER_GRANT);
        written.counts_writes()
            && u128::from(self.floor) + written.scale() > u128::from(token.get()) + gap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mint(seen: u64) -> Mint {
        Mint {
            seen: Seen::from_list(Revision(seen)),
            floor: 0,
        }
    }

    #[test]
    fn scale_follows_the_size_of_the_revision() {
        for (revision, scaled) in [
            (0, 0),
            (24_289, 24_289_000),
            ((1 << 43) - 1, ((1 << 43) - 1) * 1000),
            (1 << 43, 1 << 43),
            (1 << 53, 1 << 53),
            ((1 << 53) + 1, ((1 << 53) + 1) / 1000),
            (1_760_342_223_637_167_018, 1_760_342_223_637_167),
        ] {
            assert_eq!(Revision(revision).scale(), scaled, "scale of {revision}");
        }
    }

    #[test]
    fn token_base_exceeds_all_seen_revisions_and_the_last_grant() {
        assert_eq!(mint(5).base(Revision(7), Token::NONE), Ok(Token(7000)));
        assert_eq!(mint(9).base(Revision(7), Token::NONE), Ok(Token(9000)));
        assert_eq!(mint(5).base(Revision(7), Token(7000)), Ok(Token(8000)));
    }

    #[test]
    fn a_floor_lifts_every_base_and_keeps_recreated_locks_apart() {
        let mint = Mint {
            floor: 1_000_000_000,
            ..mint(0)
        };
        let first = mint.base(Revision(3), Token::NONE).unwrap();
        let after_recreation = mint.base(Revision(6), Token::NONE).unwrap();
        assert_eq!(first, Token(1_000_003_000));
        assert!(after_recreation > first);
    }

    #[test]
    fn a_base_that_json_cannot_carry_is_an_error_and_no_grant() {
        let most = Token(MAX_BASE - LEASES_PER_GRANT);
        assert_eq!(mint(0).base(Revision(1), most), Ok(Token(MAX_BASE)));
        assert!(mint(0).base(Revision(1), Token(MAX_BASE)).is_err());
        assert!(mint(0).base(Revision(1), Token(u64::MAX)).is_err());
        assert!(mint(0).base(Revision(u64::MAX), Token::NONE).is_err());
        let words = |at, previous| mint(0).base(at, previous).unwrap_err().to_string();
        let by_lock = words(Revision(1), Token(MAX_BASE));
        assert!(by_lock.contains("the lock's last token") && !by_lock.contains("floor"));
        let by_store = words(Revision(u64::MAX), Token(1000));
        assert!(by_store.contains("floor") && !by_store.contains("last token"));
        assert!(
            Mint {
                floor: u64::MAX,
                ..mint(0)
            }
            .base(Revision(1), Token::NONE)
            .is_err()
        );
    }

    #[test]
    fn a_grant_covers_its_thousand_tokens_and_no_other() {
        let base = Token(7000);
        assert_eq!(base.nth(999), Some(Token(7999)));
        assert_eq!(base.nth(1000), None);
        assert!(base.covers(Token(7000)) && base.covers(Token(7999)));
        assert!(!base.covers(Token(6999)) && !base.covers(Token(8000)));
    }

    #[test]
    fn a_write_far_ahead_of_its_token_must_be_raised() {
        // Observed on etcd: an object kept its revision 24289 while a LIST said 1024294.
        let token = mint(24_289).base(Revision(24_289), Token::NONE).unwrap();
        assert!(mint(24_289).must_raise(token, Revision(1_000_024_295)));
        assert!(!mint(24_289).must_raise(token, Revision(24_290)));
        assert!(!mint(24_289).must_raise(token, Revision(100_024_289)));
        assert!(mint(24_289).must_raise(token, Revision(100_024_290)));
    }

    #[test]
    fn jump_of_the_revision_is_detected() {
        assert!(Revision(24_289).leapt_to(Revision(1_000_024_290)));
        assert!(!Revision(24_289).leapt_to(Revision(24_290)));
        let now = 1_760_342_223_637_167_018;
        assert!(!Revision(now).leapt_to(Revision(now + 5_000_000_000)));
    }

    #[test]
    fn nanosecond_revisions_never_count_as_a_bump() {
        let now = 1_760_342_223_637_167_018;
        let token = mint(now).base(Revision(now), Token::NONE).unwrap();
        assert!(!mint(now).must_raise(token, Revision(now + 3_600_000_000_000)));
    }

    #[test]
    fn list_with_an_older_revision_is_detected_and_lowers_nothing() {
        let mut seen = Seen::from_list(Revision(50));
        seen.note(Revision(40));
        assert_eq!(seen.highest(), Revision(50));
        let went_back = StoreWentBack {
            seen: Revision(50),
            listed: Revision(49),
        };
        assert_eq!(seen.list_answered(Revision(49)), Err(went_back));
        assert_eq!(seen.highest(), Revision(50));
        assert_eq!(seen.list_answered(Revision(51)), Ok(()));
    }
}
