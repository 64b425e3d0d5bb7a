package policies

import (
	"path/filepath"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/generic"
	"k8s.io/apiserver/pkg/admission/plugin/policy/matching"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/cel/environment"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"
)

var (
	fenceFile   = filepath.Join(root, "charts/leasehold/files/fencing/objects.yaml")
	exampleFile = filepath.Join(root, "examples/fencing/configmap.yaml")
)

// The policy for guarded objects, with the bindings of the example.
type fence struct {
	policy   *policy
	bindings []*admissionv1.ValidatingAdmissionPolicyBinding
}

var shippedFence = sync.OnceValue(func() *fence { return newFence(readFence()) })

func readFence() *admissionv1.ValidatingAdmissionPolicy {
	found := &admissionv1.ValidatingAdmissionPolicy{}
	check(yaml.UnmarshalStrict(documents(fenceFile)[0], found))
	// The default of the API server.
	found.Spec.MatchConstraints.NamespaceSelector = &metav1.LabelSelector{}
	return found
}

func newFence(from *admissionv1.ValidatingAdmissionPolicy) *fence {
	made := &fence{policy: compile(from, environment.MustBaseEnvSet(
		environment.DefaultCompatibilityVersion()), environment.StoredExpressions)}
	for _, document := range documents(exampleFile) {
		var kind metav1.TypeMeta
		check(yaml.Unmarshal(document, &kind))
		if kind.Kind == "ValidatingAdmissionPolicyBinding" {
			binding := &admissionv1.ValidatingAdmissionPolicyBinding{}
			check(yaml.UnmarshalStrict(document, binding))
			made.bindings = append(made.bindings, binding)
		}
	}
	return made
}

// Returns the API server's answer to a write while its cache has the given lock, or no lock. The API server's
// own dispatcher matches the policy and its bindings, and looks the lock up.
func (f *fence) answer(t *testing.T, w write, cached *lock) *apierrors.StatusError {
	t.Helper()
	locks := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	if cached != nil {
		check(locks.Add(asObject(content(*cached), lockKind)))
	}
	attributes, namespace := w.attributes()
	namespace.Labels = map[string]string{corev1.LabelMetadataName: namespace.Name}
	namespaces := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	check(namespaces.Add(namespace))
	matcher := generic.NewPolicyMatcher(matching.NewMatcher(corelisters.NewNamespaceLister(namespaces), nil))
	hook := validating.PolicyHook{
		Policy: f.policy.ValidatingAdmissionPolicy, Bindings: f.bindings, Evaluator: f.policy.validator,
		ParamInformer: informer{locks}, ParamScope: meta.RESTScopeNamespace,
	}
	err := validating.NewDispatcher(w.by, matcher).Dispatch(t.Context(), attributes, interfaces{}, []validating.PolicyHook{hook})
	if err == nil {
		return nil
	}
	return err.(*apierrors.StatusError)
}

// Returns the costs of one evaluation of the policy, with the lock as its parameter.
func (f *fence) cost(t *testing.T, w write, of lock, budget int64) int64 {
	t.Helper()
	attributes, namespace := w.attributes()
	request := cel.CreateAdmissionRequest(attributes.Attributes,
		metav1.GroupVersionResource(attributes.GetResource()), metav1.GroupVersionKind(w.kind))
	bindings := cel.OptionalVariableBindings{Authorizer: w.by, VersionedParams: asObject(content(of), lockKind)}
	_, left, err := f.policy.checks.ForInput(t.Context(), attributes, request, bindings, cel.CreateNamespaceObject(namespace), budget)
	if err != nil {
		t.Fatal(err)
	}
	return budget - left
}

// A cache of locks that has synchronized.
type informer struct{ locks cache.Indexer }

func (i informer) Informer() cache.SharedIndexInformer { return synced{} }

func (i informer) Lister() cache.GenericLister {
	return cache.NewGenericLister(i.locks, schema.GroupResource{Group: lockKind.Group, Resource: "distributedlocks"})
}

type synced struct{ cache.SharedIndexInformer }

func (synced) HasSynced() bool { return true }

// The dispatcher needs only one of these, for a resource that has other versions.
type interfaces struct{ admission.ObjectInterfaces }

func (interfaces) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper {
	return runtime.NewEquivalentResourceRegistry()
}

// Compares an answer with the expected code, 0 for an allowed write, and words.
func expect(t *testing.T, answer *apierrors.StatusError, code int32, words string) {
	t.Helper()
	if answer == nil {
		verdict(t, nil, words)
		return
	}
	verdict(t, []string{answer.ErrStatus.Message}, words)
	if answer.ErrStatus.Code != code {
		t.Errorf("code %d, expected %d: %s", answer.ErrStatus.Code, code, answer.ErrStatus.Message)
	}
}
