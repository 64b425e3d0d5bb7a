package policies

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
)

type session struct {
	object `json:",inline"`
	Spec   map[string]any `json:"spec"`
	Status map[string]any `json:"status,omitempty"`
}

func sessionOf(of pod, status map[string]any) session {
	return session{object: named(of.session()), Status: status,
		Spec: map[string]any{"pod": of.name, "podUid": of.uid, "ttlSeconds": 15, "agentVersion": "0"}}
}

func sessionWrite(by who, after, before session) write {
	w := writes(by, admission.Update, sessionKind, after, before)
	w.subresource = "status"
	return w
}

func revocation(reason, by string) map[string]any {
	return map[string]any{"at": someTime, "by": by, "reason": reason}
}

func TestPodStartsSessionsOfItsOwn(t *testing.T) {
	dressed := "without labels, annotations and finalizers"
	owner := map[string]any{"apiVersion": "v1", "kind": "Pod", "name": holder.name, "uid": holder.uid}
	with := func(key string, value any) func(*session) {
		return func(s *session) { s.object = s.with(key, value) }
	}
	owned := func(key string, value any) func(*session) {
		other := map[string]any{key: value}
		for key, value := range owner {
			if _, isOther := other[key]; !isOther {
				other[key] = value
			}
		}
		return with("ownerReferences", []any{other})
	}
	for _, each := range []struct {
		what    string
		by      who
		change  func(*session)
		refused string
	}{
		{"own", holder.token(), func(*session) {}, allowed},
		{"owned by its pod", holder.token(), owned("blockOwnerDeletion", false), allowed},
		{"another's token", first.token(), func(*session) {}, "spec must name pod first"},
		{"token of no pod", unbound, func(*session) {}, notBound},
		{"another pod", holder.token(), func(s *session) { s.Spec["pod"] = first.name }, "spec must name pod holder"},
		{"another uid", holder.token(), func(s *session) { s.Spec["podUid"] = first.uid }, "spec must name pod holder"},
		{"another pod's name", holder.token(), with("name", first.session()), sessionOfAnother},
		{"a name of no agent", holder.token(), with("name", holder.name+"-0"), sessionOfAnother},
		{"a longer pod's name", holder.token(), with("name", holder.name+"-a-0123456789ab"), sessionOfAnother},
		{"labels", holder.token(), with("labels", map[string]any{"a": "b"}), dressed},
		{"annotations", holder.token(), with("annotations", map[string]any{"a": "b"}), dressed},
		{"finalizers", holder.token(), with("finalizers", []any{"x/y"}), dressed},
		{"blocking its owner", holder.token(), owned("blockOwnerDeletion", true), dressed},
		{"controlled", holder.token(), owned("controller", true), dressed},
		{"owned by another", holder.token(), owned("uid", first.uid), dressed},
		{"owned by another kind", holder.token(), owned("kind", "Job"), dressed},
	} {
		for _, of := range bothModes {
			t.Run(string(of)+"/"+each.what, func(t *testing.T) {
				made := sessionOf(holder, nil)
				each.change(&made)
				verdict(t, clusters[of]().refusals(t, writes(each.by, admission.Create, sessionKind, made, nil)), each.refused)
			})
		}
	}
}

func TestPodRenewsAndEndsItsOwnSession(t *testing.T) {
	const inStrict, inPeer = "only the operator revokes others", "another pod may only revoke it"
	before := sessionOf(holder, map[string]any{"renewals": 1, "renewedAt": someTime})
	for _, each := range []struct {
		what         string
		by           who
		status       map[string]any
		strict, peer string
	}{
		{"renewed", holder.token(), map[string]any{"renewals": 2, "renewedAt": someTime}, allowed, allowed},
		{"ended", holder.token(), map[string]any{"renewals": 1, "renewedAt": someTime, "revoked": revocation("Ended", holder.name)}, allowed, allowed},
		{"by no pod", unbound, map[string]any{"renewals": 2}, notBound, notBound},
		{"renewed by another", first.token(), map[string]any{"renewals": 2, "renewedAt": someTime}, inStrict, inPeer},
		{"revoked", first.token(), map[string]any{"renewals": 1, "renewedAt": someTime, "revoked": revocation("Expired", first.name)}, inStrict, allowed},
		{"ended by another", first.token(), map[string]any{"renewals": 1, "renewedAt": someTime, "revoked": revocation("Ended", first.name)}, inStrict, inPeer},
		{"for its pod's end", first.token(), map[string]any{"renewals": 1, "renewedAt": someTime, "revoked": revocation("PodEnded", first.name)}, inStrict, inPeer},
		{"in another's name", first.token(), map[string]any{"renewals": 1, "renewedAt": someTime, "revoked": revocation("Expired", holder.name)}, inStrict, inPeer},
		{"revoked and renewed", first.token(), map[string]any{"renewals": 2, "renewedAt": someTime, "revoked": revocation("Expired", first.name)}, inStrict, inPeer},
		{"revoked at another time", first.token(), map[string]any{"renewals": 1, "revoked": revocation("Expired", first.name)}, inStrict, inPeer},
	} {
		for of, refused := range map[mode]string{strict: each.strict, peer: each.peer} {
			t.Run(string(of)+"/"+each.what, func(t *testing.T) {
				verdict(t, clusters[of]().refusals(t, sessionWrite(each.by, sessionOf(holder, each.status), before)), refused)
			})
		}
	}
}

func managed(fields any) []any {
	return []any{map[string]any{"manager": "leasehold", "operation": "Update", "apiVersion": "leasehold.dev/v1alpha1",
		"time": someTime, "fieldsType": "FieldsV1", "fieldsV1": fields}}
}

func TestSidecarCreatesBareLocksUnderTheirNames(t *testing.T) {
	const bare, misnamed = "spec.resource and nothing else", "agents do not read this resource"
	type m = map[string]any
	with := func(key string, value any) func(*lock) {
		return func(l *lock) { l.object = l.with(key, value) }
	}
	seconds := 60
	honest := m{"f:spec": m{".": m{}, "f:resource": m{}}}
	for _, each := range []struct {
		what    string
		change  func(*lock)
		refused string
		// Whether the right to update locks lifts the refusal.
		byEditor string
	}{
		{"bare", func(*lock) {}, allowed, allowed},
		{"as the API server completes it", with("managedFields", managed(honest)), allowed, allowed},
		{"with retainSeconds", func(l *lock) { l.Spec.RetainSeconds = &seconds }, bare, allowed},
		{"with longHeldSeconds", func(l *lock) { l.Spec.LongHeldSeconds = &seconds }, bare, allowed},
		{"with labels", with("labels", m{"a": "b"}), bare, allowed},
		{"with annotations", with("annotations", m{"a": "b"}), bare, allowed},
		{"with owners", with("ownerReferences", []any{m{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "a"}}), bare, allowed},
		{"with finalizers", with("finalizers", []any{"x/y"}), bare, allowed},
		{"with more managers", with("managedFields", append(managed(honest), managed(honest)...)), bare, allowed},
		{"with more managed fields", with("managedFields", managed(m{"f:spec": m{"f:resource": m{}, "f:x": m{}}})), bare, allowed},
		{"with fields below", with("managedFields", managed(m{"f:spec": m{"f:resource": m{"f:x": m{}}}})), bare, allowed},
		{"with a managed status", with("managedFields", managed(m{"f:status": m{}})), bare, allowed},
		{"with a request", func(l *lock) { l.Spec.ReleaseRequest = asks("g", "Force") }, "this requires the verb `force-release`", "this requires the verb `force-release`"},
		{"another name", func(l *lock) { l.Spec.Resource = "another" }, misnamed, misnamed},
		{"a hashed name", func(l *lock) { l.object = named("another-0123456789abcdef0123") }, allowed, allowed},
	} {
		for _, of := range bothModes {
			t.Run(string(of)+"/"+each.what, func(t *testing.T) {
				made := lockOf("l", nil)
				each.change(&made)
				c := clusters[of]()
				verdict(t, c.refusals(t, writes(holder.token(), admission.Create, lockKind, made, nil)), each.refused)
				verdict(t, c.refusals(t, writes(editor, admission.Create, lockKind, made, nil)), each.byEditor)
			})
		}
	}
	verdict(t, clusters[strict]().refusals(t, writes(unbound, admission.Create, lockKind, lockOf("l", nil), nil)), notBound)
}

func TestHeldLockIsDeletedOnlyWithItsNamespace(t *testing.T) {
	for _, of := range bothModes {
		c := clusters[of]()
		for _, by := range []who{editor, admin, operator} {
			held := writes(by, admission.Delete, lockKind, nil, lockOf("l", held(holder)))
			verdict(t, c.refusals(t, held), "the lock is held by holder in pod holder; stop that app or delete its pod")
			verdict(t, c.refusals(t, terminating(held)), allowed)
			verdict(t, c.refusals(t, writes(by, admission.Delete, lockKind, nil, lockOf("l", freed()))), allowed)
			verdict(t, c.refusals(t, writes(by, admission.Delete, lockKind, nil, lockOf("l", nil))), allowed)
		}
	}
}

// An app chooses its lock's lease id and owner, and users copy the message's command into a shell.
func TestNothingThatAnAppWroteBecomesPartOfACommand(t *testing.T) {
	for _, bad := range []string{"x'; touch /tmp/x #", "$(id)", "`id`", "x\"", "-x", "a b", "ü"} {
		of := held(holder)
		of.Lease.ID, of.Holder.OwnerID, of.Holder.Pod = bad, bad, bad+"`"+bad
		refusals := clusters[strict]().refusals(t, writes(admin, admission.Delete, lockKind, nil, lockOf("l", of)))
		if len(refusals) != 1 {
			t.Fatalf("%q", refusals)
		}
		parts := strings.Split(refusals[0], "`")
		if len(parts) != 3 || strings.Contains(parts[1], bad) || !strings.Contains(parts[1], `"leaseId":"STATUS.LEASE.ID"`) {
			t.Errorf("%q", refusals[0])
		}
	}
}

func TestForceReleaseNeedsVerbReasonAndOwnName(t *testing.T) {
	const noRight = "this requires the verb `force-release`"
	own := func(name string) *request {
		return &request{LeaseID: holder.leaseID(), Mode: "Force", Reason: "maintenance", Actor: name}
	}
	changed := func(change func(*request)) *request {
		made := own("releaser")
		change(made)
		return made
	}
	asker := who{name: "other", verbs: releaser.verbs}
	for _, each := range []struct {
		what     string
		by       who
		old, new *request
		refused  string
	}{
		{"own", releaser, nil, own("releaser"), allowed},
		{"without the verb", editor, nil, own("editor"), noRight},
		{"asked without the verb", editor, nil, &request{LeaseID: "g", Mode: "Ask", Reason: "x", Actor: "editor"}, noRight},
		{"by a pod", holder.token(), nil, own(holder.token().name), noRight},
		{"blank reason", releaser, nil, changed(func(r *request) { r.Reason = "  " }), "reason is blank"},
		{"no reason", releaser, nil, changed(func(r *request) { r.Reason = "" }), "spec.releaseRequest.reason"},
		{"no actor", releaser, nil, changed(func(r *request) { r.Actor = "" }), "spec.releaseRequest.actor"},
		{"another actor", releaser, nil, own("editor"), "set it to \"releaser\""},
		{"another case", releaser, nil, own("Releaser"), "set it to \"releaser\""},
		{"no grant", releaser, nil, changed(func(r *request) { r.LeaseID = "" }), "spec.releaseRequest.leaseId"},
		{"no mode", releaser, nil, changed(func(r *request) { r.Mode = "" }), "spec.releaseRequest.mode"},
		{"an unknown mode", releaser, nil, changed(func(r *request) { r.Mode = "Please" }), "spec.releaseRequest.mode"},
		{"removed without the verb", editor, own("releaser"), nil, noRight},
		{"changed without the verb", editor, own("releaser"), own("editor"), noRight},
		{"left alone without the verb", editor, own("releaser"), own("releaser"), allowed},
		{"reworded in another's name", asker, own("releaser"), changed(func(r *request) { r.Reason = "x" }), "set it to \"other\""},
		{"reworded", releaser, own("releaser"), changed(func(r *request) { r.Reason = "x" }), allowed},
		{"removed by another", asker, own("releaser"), nil, allowed},
		{"by the operator", operator, nil, own(operatorName), onlyLeaders},
		{"asked by the operator", operator, nil, &request{LeaseID: "g", Mode: "Ask", Reason: "x", Actor: operatorName}, onlyLeaders},
		{"by the operator for another", operator, nil, own("releaser"), onlyLeaders},
		{"changed by the operator", operator, own("releaser"), changed(func(r *request) { r.Mode = "Ask" }), onlyLeaders},
		{"removed by the operator", operator, own("releaser"), nil, onlyLeaders},
		{"left alone by the operator", operator, own("releaser"), own("releaser"), allowed},
	} {
		for _, of := range bothModes {
			t.Run(string(of)+"/"+each.what, func(t *testing.T) {
				before, after := lockOf("l", held(holder)), lockOf("l", held(holder))
				before.Spec.ReleaseRequest, after.Spec.ReleaseRequest = each.old, each.new
				verdict(t, clusters[of]().refusals(t, writes(each.by, admission.Update, lockKind, after, before)), each.refused)
			})
		}
	}
}

func TestNamespaceLocksOnlyWhatItsAnnotationAllows(t *testing.T) {
	for _, each := range []struct {
		annotation *string
		resource   string
		refused    string
	}{
		{nil, "anything", allowed},
		{of("orders/, billing-"), "orders/4711", allowed},
		{of("orders/, billing-"), "billing-close", allowed},
		{of("orders/, billing-"), "order", "in namespace team a resource must begin with orders/ or billing- (its annotation leasehold.dev/allowed-prefixes); name the resource so"},
		{of("orders/, billing-"), "my-orders/4711", "must begin with orders/ or billing- ("},
		{of("orders/, billing-"), "Orders/4711", "must begin with orders/ or billing- ("},
		{of("orders/, billing-"), " orders/1", "must begin with orders/ or billing- ("},
		{of("orders/"), "election:orders", "must begin with orders/ ("},
		{of("orders/,election:orders"), "election:orders", allowed},
		{of("orders/,election:orders"), "election:billing", "must begin with orders/ or election:orders ("},
		{of(""), "orders", "names no prefix"},
		{of(" , "), "orders", "names no prefix"},
	} {
		for _, in := range bothModes {
			for _, by := range []who{holder.token(), admin} {
				made := lockOf("l", nil)
				made.object, made.Spec.Resource = named("l-0123456789abcdef0123"), each.resource
				w := writes(by, admission.Create, lockKind, made, nil)
				w.of = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{}}
				if each.annotation != nil {
					w.of.Annotations = map[string]string{"leasehold.dev/allowed-prefixes": *each.annotation}
				}
				t.Run(fmt.Sprintf("%s/%s/%s", in, by.name, each.resource), func(t *testing.T) {
					verdict(t, clusters[in]().refusals(t, w), each.refused)
				})
			}
		}
	}
}

func of(text string) *string { return &text }
