//! The record of a release on request: a pod writes it only as somebody asked, and about what was asked.

use leasehold::crd::lock::{
    DistributedLockStatus as Status, IncidentRecord, ReleaseMode, ReleaseRequest,
};

use super::stage::{ASKER, Expect, free, grant, incident, request};
use super::world::World;
use crate::harness::TakeOver;

const NOBODY_ASKED: &str = "nobody asked for this release in these words";

/// What a pod makes of the record.
type Change = fn(&mut IncidentRecord);

const AS_ASKED: Change = |_| ();

/// What somebody asks, what the pod `a` makes of the record of it, and whether it may.
fn cases() -> [(Option<ReleaseRequest>, Change, bool); 14] {
    let ask = |lease| Some(request(lease, ReleaseMode::Ask));
    let force = request("g-a", ReleaseMode::Force);
    [
        (None, AS_ASKED, false),
        (Some(force), AS_ASKED, false),
        // Of another grant: an earlier one, one whose name begins alike, and one with a dot in it.
        (ask("g-b"), AS_ASKED, false),
        (ask("g-"), AS_ASKED, false),
        (ask("g-a1"), AS_ASKED, false),
        (ask("g-a1.3"), AS_ASKED, false),
        (ask("g-a.3.0"), AS_ASKED, false),
        // In another's name, the pod's own among them.
        (ask("g-a"), |record| record.actor.push('x'), false),
        (
            ask("g-a"),
            |record| "a".clone_into(&mut record.actor),
            false,
        ),
        (ask("g-a"), |record| record.reason.push('x'), false),
        (ask("g-a"), |record| record.reason.clear(), false),
        (ask("g-a"), AS_ASKED, true),
        // As an app's log has it.
        (ask("g-a.0"), AS_ASKED, true),
        (ask("g-a.12"), AS_ASKED, true),
    ]
}

#[tokio::test]
async fn a_release_on_request_is_recorded_in_the_words_of_who_asked() {
    for mode in [TakeOver::Strict, TakeOver::Peer] {
        // An operator would end the grant that one of the cases forces.
        let world = World::without_operator(mode).await;
        let [a, b] = world.pods(["a", "b"]).await;
        for waiting in [&[] as &[_], &[&b]] {
            for (number, (asked, change, is_fine)) in cases().into_iter().enumerate() {
                let lock = world.held(&a, waiting).await;
                world.ask(&world.admin, &lock, asked).await.allowed();
                let end = |status: &mut Status| match waiting {
                    [] => free(status),
                    _ => grant(status, &b),
                };
                let write = |status: &mut Status| {
                    let mut record = incident("ReleasedOnRequest", &a, ASKER);
                    change(&mut record);
                    status.incidents.push(record);
                    end(status);
                };
                println!("case {number}, {} waiting", waiting.len());
                let answer = world.write(&a.client, &lock, write).await;
                if is_fine {
                    answer.allowed();
                } else {
                    answer.refused(NOBODY_ASKED);
                    // What it is told to do instead.
                    world.write(&a.client, &lock, end).await.allowed();
                }
            }
        }
    }
}
