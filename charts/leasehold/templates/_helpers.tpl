{{/* Labels of all objects. */}}
{{- define "leasehold.labels" -}}
{{ include "leasehold.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: leasehold
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels that select the operator's pods; they never change. */}}
{{- define "leasehold.selector" -}}
app.kubernetes.io/name: leasehold
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "leasehold.operatorSelector" -}}
{{ include "leasehold.selector" . }}
app.kubernetes.io/component: operator
{{- end }}

{{/* An image reference. Takes a list: the root, then images. Each image supplies the fields that are unset in those
before it. */}}
{{- define "leasehold.reference" -}}
{{- $root := first . }}
{{- $image := dict }}
{{- range rest . }}
{{- $image = merge $image (pick . "registry" "repository") }}
{{- if not (or $image.tag $image.digest) }}{{ $image = merge $image (pick . "tag" "digest") }}{{ end }}
{{- end }}
{{- $registry := $root.Values.global.imageRegistry | default $image.registry }}
{{- with $registry }}{{ trimSuffix "/" . }}/{{ end }}
{{- $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "leasehold.operatorImage" -}}
{{ include "leasehold.reference" (list . .Values.image) }}
{{- end }}

{{- define "leasehold.sidecarImage" -}}
{{ include "leasehold.reference" (list . .Values.sidecar.image .Values.image) }}
{{- end }}

{{/*
The objects of one file under files/. These files contain the rights, policies and CRDs as the tests apply them: with
the namespace leasehold-system and the token floor 0. Takes `root`, `file`, `keep`: whether the objects stay after an
uninstallation, and `moreRules`: a file with a role whose rules are added.
*/}}
{{- define "leasehold.shipped" -}}
{{- $root := .root }}
{{- $file := .file }}
{{- $keep := .keep }}
{{- $moreRules := .moreRules }}
{{- $text := required (printf "%s is not in the chart" $file) ($root.Files.Get $file) }}
{{- $floor := printf "- name: tokenFloor\n    expression: \"%d\"" (int64 $root.Values.tokenFloor) }}
{{- $text = replace "- name: tokenFloor\n    expression: \"0\"" $floor $text }}
{{- range splitList "\n---\n" (replace "leasehold-system" $root.Release.Namespace $text) }}
{{- $object := fromYaml . }}
{{- if hasKey $object "Error" }}{{ fail (printf "%s: %s" $file $object.Error) }}{{ end }}
{{- $metadata := $object.metadata }}
{{- $labels := merge (include "leasehold.labels" $root | fromYaml) ($metadata.labels | default dict) }}
{{- $_ := set $metadata "labels" $labels }}
{{- with $moreRules }}
{{- $_ := set $object "rules" (concat $object.rules (fromYaml ($root.Files.Get .)).rules) }}
{{- end }}
{{- if $keep }}
{{- $annotations := merge (dict "helm.sh/resource-policy" "keep") ($metadata.annotations | default dict) }}
{{- $_ := set $metadata "annotations" $annotations }}
{{- end }}
---
{{ toYaml $object }}
{{ end }}
{{- end }}

{{/* `off` without quotation marks is `false` in YAML. */}}
{{- define "leasehold.policyMode" -}}
{{- $mode := toString .Values.admissionPolicy.mode }}
{{- ternary "off" $mode (eq $mode "false") }}
{{- end }}

{{/* The configuration of injected sidecars, in the format that the operator reads. */}}
{{- define "leasehold.injection" -}}
{{- with .Values.sidecar -}}
{{- if eq (int64 .ports.api) (int64 .ports.admin) }}
{{- fail (printf "sidecar.ports.api and sidecar.ports.admin are both %d: use two ports" (int64 .ports.api)) }}
{{- end -}}
image: {{ include "leasehold.sidecarImage" $ }}
imagePullPolicy: {{ $.Values.image.pullPolicy }}
logLevel: {{ .logLevel | quote }}
sessionTtlSeconds: {{ int64 .sessionTtlSeconds }}
tokenFloor: {{ int64 $.Values.tokenFloor }}
takeOver: {{ ternary "strict" "auto" (eq (include "leasehold.policyMode" $) "strict") }}
resources:
  {{- toYaml .resources | nindent 2 }}
guaranteedResources:
  {{- toYaml .guaranteedResources | nindent 2 }}
ports:
  api: {{ int64 .ports.api }}
  admin: {{ int64 .ports.admin }}
{{- end }}
{{- end }}

{{/* The security context of our containers: no privileges. It satisfies Pod Security `restricted`. */}}
{{- define "leasehold.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
{{- end }}

{{- define "leasehold.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* Identifies the pod to the agent in its container. */}}
{{- define "leasehold.podEnv" -}}
- name: LEASEHOLD_POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: LEASEHOLD_POD_UID
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
- name: LEASEHOLD_NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: LEASEHOLD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- end }}
