package policies

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

const (
	labelOfFence = "leasehold.dev/fenced-by"
	fenceToken   = "leasehold.dev/fencing-token"
	forbidden    = 403
	invalid      = 422
)

var (
	configMapKind = schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	collector     = who{name: "system:serviceaccount:kube-system:generic-garbage-collector"}
	namespaces    = who{name: "system:serviceaccount:kube-system:namespace-controller"}
	atVersionSeen = metav1.NewRVDeletionPrecondition("7000")
)

// Returns the ConfigMap of the example with a token, or without the annotation.
func guarded(token string) object {
	made := named("settings").with("labels", map[string]string{labelOfFence: "settings"})
	if token != "" {
		made = made.with("annotations", map[string]string{fenceToken: token})
	}
	return made
}

func theLock(of *status) *lock {
	made := lockOf("settings", of)
	return &made
}

// A write of the ConfigMap: of `after` over `before`. One of them is nil for a deletion or a creation.
func fenced(by who, after, before any) write {
	operation := admission.Update
	if before == nil {
		operation = admission.Create
	} else if after == nil {
		operation = admission.Delete
	}
	made := writes(by, operation, configMapKind, after, before)
	made.resource = "configmaps"
	return made
}

func deletes(by who, token string, options *metav1.DeleteOptions) write {
	made := fenced(by, nil, guarded(token))
	made.options = options
	return made
}

func offset(by int64) string { return fmt.Sprint(someToken + by) }

const (
	staleForLock   = "was granted with the newer token 5000000, and is held by holder in pod holder"
	staleForObject = "the object was written with the newer token"
	noToken        = "the write has no fencing token: acquire the lock settings in namespace team"
	notAToken      = "is not a fencing token (decimal digits without leading zeros)"
	neverGiven     = "is not of the last grant that this API server has seen of the lock settings in namespace team"
)

func TestStaleTokensAreRefusedForGuardedObjects(t *testing.T) {
	for _, each := range []struct {
		what          string
		before, after string
		code          int32
		words         string
	}{
		{"first token of the grant", offset(0), offset(0), 0, allowed},
		{"last token of the grant", offset(0), offset(999), 0, allowed},
		{"same lease again", offset(7), offset(7), 0, allowed},
		{"first write of a newer grant", offset(-1000), offset(0), 0, allowed},
		{"first write of the object", "", offset(0), 0, allowed},
		{"older grant", offset(-1000), offset(-1), forbidden, staleForLock},
		{"older grant, unchanged annotation", offset(-1000), offset(-1000), forbidden,
			"stale fencing token 4999000 (the write leaves the annotation unchanged): the lock settings"},
		{"older grant after the newer one", offset(0), offset(-1), forbidden, staleForObject},
		{"older lease of the same grant", offset(7), offset(6), forbidden, staleForObject},
		{"fewer digits", "10000000", "5000000", forbidden, staleForObject},
		{"another lock's larger token", offset(0), offset(1000), invalid, neverGiven},
		{"largest token", offset(0), "9007199254740991", invalid, neverGiven},
		{"no annotation", offset(0), "", invalid, noToken},
		{"no annotation ever", "", "", invalid, noToken},
		{"text", offset(0), "new", invalid, notAToken},
		{"zero", offset(0), "0", invalid, notAToken},
		{"negative", offset(0), "-5000000", invalid, notAToken},
		{"plus", offset(0), "+5000000", invalid, notAToken},
		{"leading zeros", offset(0), "05000000", invalid, notAToken},
		{"hexadecimal", offset(0), "0x4c4b40", invalid, notAToken},
		{"fraction", offset(0), "5000000.5", invalid, notAToken},
		{"exponent", offset(0), "5e6", invalid, notAToken},
		{"space", offset(0), " 5000000", invalid, notAToken},
		{"line break", offset(0), "5000000\n", invalid, notAToken},
		{"other digits", offset(0), "５０００００３", invalid, notAToken},
		{"17 digits", offset(0), "50000000000000000", invalid, notAToken},
		{"beyond 64 bits", offset(0), long("9", 40), invalid, notAToken},
		{"unreadable before", "new", offset(0), 0, allowed},
	} {
		t.Run(each.what, func(t *testing.T) {
			answer := shippedFence().answer(t, fenced(editor, guarded(each.after), guarded(each.before)), theLock(held(holder)))
			expect(t, answer, each.code, each.words)
		})
	}
	empty := guarded("").with("annotations", map[string]string{fenceToken: ""})
	expect(t, shippedFence().answer(t, fenced(editor, empty, guarded("")), theLock(held(holder))), invalid, noToken)
}

// While the cache has an older grant, the annotation decides for an object that the newer holder has written.
func TestStaleCacheDoesNotAdmitOlderTokens(t *testing.T) {
	cached := theLock(held(holder))
	cached.Status.Token = someToken - 1000
	update := func(before, after string) write { return fenced(editor, guarded(after), guarded(before)) }
	f := shippedFence()
	expect(t, f.answer(t, update(offset(0), offset(-1000)), cached), forbidden, staleForObject)
	expect(t, f.answer(t, update(offset(0), offset(-1)), cached), forbidden, staleForObject)
	// Before the newer holder's first write, nothing shows that the token is old.
	expect(t, f.answer(t, update(offset(-1000), offset(-1000)), cached), 0, allowed)
	// The newer holder repeats its write until the cache has its grant.
	expect(t, f.answer(t, update(offset(-1000), offset(0)), cached), invalid, neverGiven+", whose tokens are 4999000 to 4999999; if the lease is new, repeat the write")
}

func TestFenceByTheStateOfTheLock(t *testing.T) {
	update := func(token string) write { return fenced(editor, guarded(token), guarded(offset(0))) }
	f := shippedFence()
	// Until the next grant, the last holder's token is the newest one.
	expect(t, f.answer(t, update(offset(0)), theLock(freed())), 0, allowed)
	expect(t, f.answer(t, update(offset(-1)), theLock(freed())), forbidden, staleForObject)
	stale := fenced(editor, guarded(offset(-1)), guarded(offset(-1)))
	expect(t, f.answer(t, stale, theLock(freed())), forbidden, "newer token 5000000, and is free")
	// A recreated lock has no status until its first grant, which has a larger token.
	for _, none := range []*status{nil, {}} {
		for _, token := range []string{"1", "999", offset(0)} {
			created := fenced(editor, guarded(token), nil)
			expect(t, f.answer(t, created, theLock(none)), invalid, "which has no grant")
		}
	}
	expect(t, f.answer(t, update(offset(0)), nil), invalid, "no params found for policy binding with `Deny` parameterNotFoundAction")
	other := theLock(held(holder))
	other.object = named("other")
	expect(t, f.answer(t, update(offset(0)), other), invalid, "no params found")
	longest := theLock(held(holder))
	longest.Status.Token = 9_007_199_254_739_992
	expect(t, f.answer(t, update("9007199254740991"), longest), 0, allowed)
}

func TestWhichWritesAreFenced(t *testing.T) {
	f, cached := shippedFence(), theLock(held(holder))
	plain := named("settings")
	expect(t, f.answer(t, fenced(editor, guarded(offset(0)), nil), cached), 0, allowed)
	expect(t, f.answer(t, fenced(editor, guarded(offset(-1)), nil), cached), forbidden, staleForLock)
	expect(t, f.answer(t, fenced(editor, guarded(""), nil), cached), invalid, noToken)
	// An object without the label is not guarded. To guard it takes a token, and a write cannot end the guard.
	expect(t, f.answer(t, fenced(editor, plain, plain), cached), 0, allowed)
	expect(t, f.answer(t, fenced(editor, guarded(""), plain), cached), invalid, noToken)
	expect(t, f.answer(t, fenced(editor, guarded(offset(0)), plain), cached), 0, allowed)
	const stays = "removes or changes the label leasehold.dev/fenced-by"
	stamped := guarded(offset(0))
	for _, labels := range []map[string]string{nil, {labelOfFence: "other"}, {labelOfFence: ""}} {
		expect(t, f.answer(t, fenced(editor, stamped.with("labels", labels), stamped), cached), invalid, stays)
	}
	// Other namespaces, resources and subresources.
	elsewhere := fenced(editor, guarded(""), guarded(""))
	elsewhere.namespace = "elsewhere"
	expect(t, f.answer(t, elsewhere, cached), 0, allowed)
	secret := fenced(editor, guarded(""), guarded(""))
	secret.resource = "secrets"
	expect(t, f.answer(t, secret, cached), 0, allowed)
	status := fenced(editor, guarded(""), guarded(""))
	status.subresource = "status"
	expect(t, f.answer(t, status, cached), 0, allowed)
	// Administrators and the operator are fenced, too. The cluster's own cleanup is not.
	for _, by := range []who{admin, operator, holder.token()} {
		expect(t, f.answer(t, fenced(by, guarded(offset(-1)), guarded(offset(-1))), cached), forbidden, staleForLock)
	}
	expect(t, f.answer(t, fenced(collector, guarded(""), guarded(offset(-1))), cached), 0, allowed)
}

func TestDeletionsNeedACurrentTokenAndAVersion(t *testing.T) {
	f, cached := shippedFence(), theLock(held(holder))
	expect(t, f.answer(t, deletes(editor, offset(0), atVersionSeen), cached), 0, allowed)
	for _, options := range []*metav1.DeleteOptions{{}, {Preconditions: metav1.NewUIDPreconditions("uid-of-settings")}} {
		expect(t, f.answer(t, deletes(editor, offset(0), options), cached), invalid, "a deletion needs preconditions.resourceVersion")
	}
	expect(t, f.answer(t, deletes(editor, offset(-1), atVersionSeen), cached), forbidden, "write your own token into the annotation")
	expect(t, f.answer(t, deletes(editor, "", atVersionSeen), cached), invalid, "the object has no fencing token")
	// A request to delete a collection has no name.
	collection := deletes(editor, offset(0), &metav1.DeleteOptions{})
	collection.name = ""
	expect(t, f.answer(t, collection, cached), invalid, "a deletion needs preconditions.resourceVersion")
	for _, by := range []who{collector, namespaces} {
		expect(t, f.answer(t, deletes(by, offset(-1), &metav1.DeleteOptions{}), cached), 0, allowed)
	}
	// The end of a namespace may delete the lock first.
	expect(t, f.answer(t, deletes(namespaces, offset(-1), &metav1.DeleteOptions{}), nil), 0, allowed)
}

// The control: without one of its checks, the policy accepts the write that the check is for.
func TestWithoutAValidationTheWritePasses(t *testing.T) {
	cached := theLock(held(holder))
	update := func(before, after string) write { return fenced(editor, guarded(after), guarded(before)) }
	for name, each := range map[string]struct {
		expression string
		w          write
	}{
		"stale":     {"variables.token >= variables.base", update(offset(-1000), offset(-1))},
		"no token":  {"variables.token > 0", update(offset(0), "")},
		"too large": {"variables.base + 1000", update(offset(0), offset(1000))},
		"label":     {labelOfFence, fenced(editor, guarded(offset(0)).with("labels", nil), guarded(offset(0)))},
		"deletion":  {"preconditions", deletes(editor, offset(0), &metav1.DeleteOptions{})},
	} {
		t.Run(name, func(t *testing.T) {
			if shippedFence().answer(t, each.w, cached) == nil {
				t.Fatal("the shipped policy allows it")
			}
			weaker := readFence()
			weaker.Spec.Validations = slices.DeleteFunc(weaker.Spec.Validations, func(of admissionv1.Validation) bool {
				return strings.Contains(of.Expression, each.expression)
			})
			if len(weaker.Spec.Validations) != len(readFence().Spec.Validations)-1 {
				t.Fatal("not one validation was removed")
			}
			expect(t, newFence(weaker).answer(t, each.w, cached), 0, allowed)
		})
	}
}

func TestBindingsOfTheFence(t *testing.T) {
	f := shippedFence()
	actions := map[string]admissionv1.ParameterNotFoundActionType{}
	for _, each := range f.bindings {
		if each.Spec.PolicyName != f.policy.Name || !slices.Equal(each.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) {
			t.Errorf("%s does not deny by %s", each.Name, f.policy.Name)
		}
		actions[each.Name] = *each.Spec.ParamRef.ParameterNotFoundAction
	}
	expected := map[string]admissionv1.ParameterNotFoundActionType{
		"fence-team-settings": admissionv1.DenyAction, "fence-team-settings-delete": admissionv1.AllowAction}
	if !maps.Equal(actions, expected) {
		t.Errorf("bindings: %v", actions)
	}
	// A binding without its lock refuses, with the words that say why.
	without := newFence(readFence())
	for _, each := range without.bindings {
		each.Spec.ParamRef = nil
	}
	for _, w := range []write{fenced(editor, guarded(offset(0)), guarded("")), fenced(editor, guarded(""), nil), deletes(editor, offset(0), atVersionSeen)} {
		expect(t, without.answer(t, w, theLock(held(holder))), invalid, "the binding has no paramRef")
	}
}

func TestFenceIsCheapAndFitsTheOldestKubernetes(t *testing.T) {
	compile(readFence(), environment.MustBaseEnvSet(version.MajorMinor(1, 33)), environment.NewExpressions)
	of := theLock(held(holder))
	of.Status.Holder.OwnerID, of.Status.Holder.Pod = long("é`", 85), long("p", 253)
	after := guarded(offset(-1)).with("annotations", map[string]string{fenceToken: offset(-1), "other": long("x", 200_000)})
	w := fenced(editor, after, after)
	cost := shippedFence().cost(t, w, *of, celconfig.RuntimeCELCostBudget)
	t.Logf("validations cost %d of %d", cost, celconfig.RuntimeCELCostBudget)
	if cost > celconfig.RuntimeCELCostBudget/1000 {
		t.Error("the policy costs too much")
	}
	expect(t, shippedFence().answer(t, w, of), forbidden, "stop its work")
}
