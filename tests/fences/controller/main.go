// Command controller writes the ConfigMap $OBJECT with the token $TOKEN by client-go, in each way that a controller
// writes, and exits with code 1 after the first refusal.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"leasehold.dev/go/leasehold/fence"
)

// lead is a term with a token.
type lead int64

func (l lead) Token() (int64, bool) { return int64(l), true }

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	token, err := strconv.ParseInt(os.Getenv("TOKEN"), 10, 64)
	if err != nil {
		return err
	}
	client, err := fenced(config, lead(token), func(token int64) { fmt.Println("lost the lead of token", token) })
	if err != nil {
		return err
	}
	return write(ctx, client, os.Getenv("NAMESPACE"), os.Getenv("OBJECT"), os.Getenv("VALUE"))
}

// fenced returns a client as docs/fencing-kubernetes.md shows it.
func fenced(config *rest.Config, election lead, stop func(int64)) (*kubernetes.Clientset, error) {
	config = rest.CopyConfig(config)
	config.ContentType = "application/json"
	config.Wrap(func(base http.RoundTripper) http.RoundTripper {
		return fence.New(base, election.Token, stop)
	})
	return kubernetes.NewForConfig(config)
}

func write(ctx context.Context, client *kubernetes.Clientset, namespace, name, value string) error {
	maps := client.CoreV1().ConfigMaps(namespace)
	object, err := maps.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	object.Data = map[string]string{"text": value}
	if _, err := maps.Update(ctx, object, metav1.UpdateOptions{}); err != nil {
		return err
	}
	patch := []byte(`[{"op":"add","path":"/data/patched","value":"yes"}]`)
	if _, err := maps.Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	// It has the label of the guarded object, so it is guarded, too.
	owned := name + "-owned"
	apply := applycorev1.ConfigMap(owned, namespace).WithLabels(object.Labels).WithData(object.Data)
	if _, err := maps.Apply(ctx, apply, metav1.ApplyOptions{FieldManager: "controller"}); err != nil {
		return err
	}
	if err := maps.Delete(ctx, owned, metav1.DeleteOptions{}); err != nil {
		return err
	}
	created := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: owned, Labels: object.Labels}}
	if _, err := maps.Create(ctx, created, metav1.CreateOptions{}); err != nil {
		return err
	}
	return maps.Delete(ctx, owned, metav1.DeleteOptions{})
}
